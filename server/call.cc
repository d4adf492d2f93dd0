// SPDX-License-Identifier: Apache-2.0
#include "server/call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

#include "absl/log/log.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/caller.h"
#include "server/logging.h"
#include "server/rights.h"
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
      cancel_(std::make_shared<CancelToken>()),
      client_(ClientOf(*context)) {}

Call::~Call() {
  if (admitted_) services_.calls->Leave(this);
}

absl::Status Call::Admit() {
  const Right needed = RightFor(absl::StrCat("/", services_.service, "/", method_));
  if (needed == Right::kAdmin && !services_.takes_admin_calls) {
    return absl::PermissionDeniedError(absl::StrCat(
        "method: must be called at an address of --admin-listen; was ", method_, " elsewhere"));
  }
  admitted_ = services_.calls->Enter(this);
  if (admitted_) return absl::OkStatus();
  return absl::UnavailableError("server: is draining and takes no new calls; was " +
                                std::string(method_));
}

absl::Status Call::CheckRequestId(absl::string_view id) {
  const bool printable = std::all_of(id.begin(), id.end(), absl::ascii_isprint);
  if (id.size() <= kMaxRequestIdBytes && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("request_id: must be at most ", kMaxRequestIdBytes,
                                                 " printable ASCII characters; was ", id.size(),
                                                 " bytes"));
}

absl::Status Call::ChooseRequestId(absl::string_view field) {
  const auto& metadata = context_->client_metadata();
  const auto found = metadata.find("headwise-request-id");
  absl::string_view id = field;
  if (found != metadata.end()) id = {found->second.data(), found->second.size()};
  if (absl::Status valid = CheckRequestId(id); !valid.ok()) return valid;
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

absl::Status Call::Hold(int64_t message_bytes) {
  return message_memory_.Take(services_.memory, message_bytes);
}

RequestContext Call::request_context(int32_t priority) {
  return {.deadline = deadline_,
          .cancel = cancel_,
          .client = client_,
          .priority = priority,
          .reserve_answer = [this](int64_t bytes) {
            return answer_memory_.Take(services_.memory, bytes);
          }};
}

void Call::SetAnswer(const PassInfo& pass, absl::Duration encode, int64_t answer_bytes) {
  pass_ = pass;
  encode_ = encode;
  answer_memory_.Settle(answer_bytes);
}

void Call::Log(absl::string_view layer, absl::string_view request_id, const absl::Status& status,
               const PassInfo* pass, absl::Duration total) const {
  const absl::Duration slow = services_.options->slow_request;
  const bool is_slow = slow > absl::ZeroDuration() && total >= slow;
  if (!is_slow && CurrentLogLevel() != LogLevel::kDebug) return;
  std::string line = absl::StrCat(
      is_slow ? "slow call" : "call", " method=", method_, " layer=", absl::CHexEscape(layer),
      " code=", CodeName(status.code()), " request=", absl::CHexEscape(request_id),
      " client=", absl::CHexEscape(client_), " total_us=", absl::ToInt64Microseconds(total));
  if (pass != nullptr) {
    absl::StrAppend(&line, " version=", pass->layer_version, " queue_us=", pass->queue_us,
                    " compute_us=", pass->compute_us, " batch_requests=", pass->batch_requests,
                    " batch_tokens=", pass->batch_tokens);
  }
  if (const std::string trace = TraceParentOf(*context_); !trace.empty()) {
    absl::StrAppend(&line, " traceparent=", trace);
  }
  if (is_slow) {
    LOG(WARNING) << line;
  } else {
    LOG(INFO) << line;
  }
}

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

void Call::RecordPart(const CallRecord& part, absl::string_view request_id) const {
  services_.metrics->Record(part);
  Log(part.layer, request_id, part.status, part.pass, part.total);
}

absl::Duration Call::RetryDelayOf(const absl::Status& status) const {
  if (!absl::IsResourceExhausted(status)) return kRetryDelayOfOthers;
  return RetryDelay(services_.engine->stats().backlog);
}

grpc::Status Call::End(const absl::Status& status) {
  const absl::Status final_status = Final(status);
  if (request_id_.empty()) request_id_ = MakeRequestId();
  const absl::Duration total = absl::Now() - arrived_;
  const PassInfo* const pass = pass_.has_value() ? &*pass_ : nullptr;
  services_.metrics->Record({layer_, method_, final_status, total, pass, encode_});
  Log(layer_, request_id_, final_status, pass, total);
  context_->AddTrailingMetadata("headwise-request-id", request_id_);
  if (pass_.has_value()) {
    context_->AddTrailingMetadata("headwise-queue-us", absl::StrCat(pass_->queue_us));
    context_->AddTrailingMetadata("headwise-compute-us", absl::StrCat(pass_->compute_us));
    context_->AddTrailingMetadata("headwise-layer-version", absl::StrCat(pass_->layer_version));
  }
  return ToGrpcStatus(final_status, RetryDelayOf(final_status));
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
