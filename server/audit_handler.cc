// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/audit/checks.h"
#include "core/audit/distinguish.h"
#include "core/audit/engine_target.h"
#include "core/audit/search.h"
#include "core/base/refusal.h"
#include "core/batch/validate.h"
#include "server/codec_audit.h"
#include "server/codec_input.h"
#include "server/progress_call.h"
#include "server/service.h"
#include "server/stored_parts.h"

namespace headwise {
namespace {

// An audit works in f64 with everything materialised, on one thread: 2^24 scores take a few seconds
// a computation and some 800 MB.
constexpr int64_t kMostScores = int64_t{1} << 24;
constexpr int64_t kMostTokens = 8192;

// One Audit: the checks of the served layer, or the search for what the caller's numbers come from,
// on the thread of analyses.
class AuditCall final : public ProgressCall<v1::AuditResponse> {
 public:
  AuditCall(const Services& services, grpc::CallbackServerContext* context,
            const v1::AuditRequest* request, Worker* worker)
      : ProgressCall(services, context, "Audit", request->layer()),
        request_(*request),
        worker_(*worker) {}

  void Run(const Startup& startup) {
    if (const absl::Status status = Accept(startup); !status.ok()) return Answer(status);
    WriteProgress("waiting", 0, 1);
    if (worker_.Post([this] { Audit(); })) return;
    Answer(absl::ResourceExhaustedError(
        "audits: must not wait behind so many, retry later; was too many"));
  }

 private:
  absl::Status Accept(const Startup& startup) {
    absl::Status status = Admit();
    status.Update(ChooseRequestId(""));
    status.Update(startup.Check(request_.layer()));
    if (!status.ok()) return status;
    absl::StatusOr<LayerInfo> info = services_.engine->GetLayer(request_.layer());
    if (!info.ok()) return info.status();
    if (request_.has_expected_version() && request_.expected_version() != info->version) {
      return absl::FailedPreconditionError(
          absl::StrCat("expected_version: layer \"", request_.layer(), "\" has version ",
                       info->version, "; was ", request_.expected_version()));
    }
    info_ = *std::move(info);
    if (request_.has_theirs() && !request_.has_input()) {
      return absl::InvalidArgumentError("input: must be given beside theirs; was absent");
    }
    if (!request_.has_theirs() && request_.has_ablation()) {
      return absl::InvalidArgumentError("ablation: must go with theirs; was without");
    }
    if (request_.has_input()) {
      absl::StatusOr<AttentionInput> input = DecodeInput(request_.input());
      if (!input.ok()) return input.status();
      input_ = *std::move(input);
    } else {
      input_ = AuditProbe(info_.spec);
    }
    const absl::StatusOr<ValidInput> valid =
        ValidateInput(info_.spec, input_, services_.engine->limits().max_sequences);
    return valid.ok() ? CheckSize(*valid) : valid.status();
  }

  absl::Status CheckSize(const ValidInput& valid) const {
    int64_t scores = 0;
    for (size_t b = 0; b < valid.queries.size(); ++b) {
      scores += info_.spec.heads * valid.queries[b] * valid.keys[b];
    }
    const int64_t tokens = std::max(valid.query_rows, valid.key_rows);
    if (tokens > kMostTokens) {
      return Refuse(Refusal::kTooLarge,
                    absl::StrCat("tokens: at most ", kMostTokens, " in an audit; was ", tokens));
    }
    if (scores <= kMostScores) return absl::OkStatus();
    return Refuse(Refusal::kTooLarge,
                  absl::StrCat("scores: at most ", kMostScores, " in an audit; was ", scores));
  }

  // On the worker's thread.
  void Audit() {
    if (const absl::Status stopped = Stopped("wait"); !stopped.ok()) return Answer(stopped);
    absl::StatusOr<LayerParts> parts = ReadParts(*services_.loader, info_.name);
    if (!parts.ok()) return Answer(parts.status());
    v1::AuditResponse response;
    v1::AuditResult* result = response.mutable_result();
    result->set_layer(info_.name);
    result->set_layer_version(static_cast<uint32_t>(info_.version));
    const absl::Status status = request_.has_theirs() ? SearchTheirs(*std::move(parts), result)
                                                      : CheckServed(*parts, result);
    AnswerWith(status, std::move(response));
  }

  absl::Status CheckServed(const LayerParts& parts, v1::AuditResult* result) {
    EngineTarget target(services_.engine, info_.name, info_.version, request_context());
    const auto checks =
        CheckServedLayer(info_, parts, input_, &target,
                         {.progress = [this](auto stage, auto done,
                                             auto total) { WriteProgress(stage, done, total); },
                          .stop = [this] { return cancelled_or_late(); }});
    if (!checks.ok()) {
      const absl::Status stopped = Stopped("audit");
      return stopped.ok() ? checks.status() : stopped;
    }
    EncodeChecks(*checks, result);
    return absl::OkStatus();
  }

  absl::Status SearchTheirs(LayerParts parts, v1::AuditResult* result) {
    absl::StatusOr<ReferenceInput> input = ReadReferenceInput(info_.spec, input_);
    if (!input.ok()) return input.status();
    const auto theirs = DecodeTheirs(info_.spec, *input, request_.theirs());
    if (!theirs.ok()) return theirs.status();
    const auto stated = DecodeStatedDType(request_.theirs());
    if (!stated.ok()) return stated.status();
    AuditCase right =
        RightCase(info_.spec, std::make_shared<const LayerMatrices>(std::move(parts.matrices)),
                  std::make_shared<const ReferenceInput>(*std::move(input)));
    const absl::Status ablated = DecodeAuditAblation(request_.ablation(), &right);
    if (!ablated.ok()) return ablated;
    SearchOptions options;
    options.stated = *stated;
    options.progress = [this](auto stage, auto done, auto total) {
      WriteProgress(stage, done, total);
    };
    options.stop = [this] { return cancelled_or_late(); };
    const SearchResult found = FindMistakes(right, *theirs, options);
    const absl::Status stopped = Stopped("audit");
    if (!stopped.ok()) return stopped;
    EncodeSearch(found, *stated, result);
    if (request_.want_distinguishing_input() && found.explanations.size() > 1) {
      EncodeDistinguishing(Distinguish(right, found.explanations, *stated), info_.spec, result);
    }
    return absl::OkStatus();
  }

  const v1::AuditRequest& request_;  // gRPC keeps it until OnDone
  Worker& worker_;
  // Written before the worker is asked, read by it.
  LayerInfo info_;
  AttentionInput input_;
};

}  // namespace

grpc::ServerWriteReactor<v1::AuditResponse>* HeadwiseService::Audit(
    grpc::CallbackServerContext* context, const v1::AuditRequest* request) {
  auto* call = new AuditCall(services_, context, request, &analyses_);
  call->Run(startup_);
  return call;
}

}  // namespace headwise
