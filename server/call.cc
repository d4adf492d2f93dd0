// SPDX-License-Identifier: Apache-2.0
#include "server/call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/status.h"

namespace headwise {
namespace {

constexpr size_t kMaxRequestIdBytes = 256;

std::string MakeRequestId() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return absl::StrFormat("%016x", random());
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

}  // namespace

Call::Call(const Services& services, grpc::CallbackServerContext* context, const char* method,
           absl::string_view layer)
    : services_(services),
      context_(context),
      method_(method),
      layer_(layer),
      arrived_(absl::Now()),
      deadline_(DeadlineOf(*context)),
      cancel_(std::make_shared<CancelToken>()) {}

Call::~Call() {
  if (admitted_) services_.calls->Leave(this);
}

absl::Status Call::Admit() {
  admitted_ = services_.calls->Enter(this);
  if (admitted_) return absl::OkStatus();
  return absl::UnavailableError("server: is draining and takes no new calls; was " +
                                std::string(method_));
}

absl::Status Call::ChooseRequestId(absl::string_view field) {
  const auto& metadata = context_->client_metadata();
  const auto found = metadata.find("headwise-request-id");
  absl::string_view id = field;
  if (found != metadata.end()) id = {found->second.data(), found->second.size()};
  const bool printable = std::all_of(id.begin(), id.end(), absl::ascii_isprint);
  if (id.size() > kMaxRequestIdBytes || !printable) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: must be at most ", kMaxRequestIdBytes,
                     " printable ASCII characters; was ", id.size(), " bytes"));
  }
  request_id_ = id.empty() ? MakeRequestId() : std::string(id);
  return absl::OkStatus();
}

void Call::Cancel() {
  cancel_->Cancel();
  services_.engine->CancelQueued();
}

void Call::Abort() {
  aborted_.store(true);
  cancel_->Cancel();
}

void Call::SetPass(const PassInfo& pass) { pass_ = pass; }

// What a cancelled call is told depends on who cancelled it, which the engine can't know.
absl::Status Call::Final(const absl::Status& status) const {
  if (!absl::IsCancelled(status)) return status;
  if (aborted()) {
    return absl::UnavailableError("server: has stopped before the call ended; was past --grace");
  }
  if (absl::Now() >= deadline_) {
    return absl::DeadlineExceededError(absl::StrCat("deadline: must not have passed; was ",
                                                    absl::FormatDuration(deadline_ - arrived_),
                                                    " from the call's arrival"));
  }
  return status;
}

grpc::Status Call::End(const absl::Status& status) {
  const absl::Status final_status = Final(status);
  services_.metrics->RecordCall(layer_, method_, final_status.code(), absl::Now() - arrived_);
  if (request_id_.empty()) request_id_ = MakeRequestId();
  context_->AddTrailingMetadata("headwise-request-id", request_id_);
  if (pass_.has_value()) {
    context_->AddTrailingMetadata("headwise-queue-us", absl::StrCat(pass_->queue_us));
    context_->AddTrailingMetadata("headwise-compute-us", absl::StrCat(pass_->compute_us));
    context_->AddTrailingMetadata("headwise-layer-version", absl::StrCat(pass_->layer_version));
  }
  return ToGrpcStatus(final_status);
}

grpc::ServerUnaryReactor* AnswerNow(const Services& services, grpc::CallbackServerContext* context,
                                    const char* method, absl::string_view layer,
                                    const std::function<absl::Status()>& answer) {
  auto* call = new UnaryCall(services, context, method, layer);
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(""));
  if (status.ok()) status = answer();
  call->Reply(status);
  return call;
}

}  // namespace headwise
