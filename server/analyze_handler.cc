// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/analysis/analysis.h"
#include "core/batch/validate.h"
#include "server/codec_ablation.h"
#include "server/codec_analysis.h"
#include "server/codec_input.h"
#include "server/service.h"

namespace headwise {
namespace {

// One AnalyzeHeads: a forward that returns weights and contributions, the analysis of them on a
// thread of its own, then the result. Deletes itself when gRPC is done with it.
class AnalyzeCall final : public grpc::ServerWriteReactor<v1::AnalyzeHeadsResponse>, public Call {
 public:
  AnalyzeCall(const Services& services, grpc::CallbackServerContext* context,
              const v1::AnalyzeHeadsRequest* request, Worker* worker)
      : Call(services, context, "AnalyzeHeads", request->layer()),
        request_(*request),
        worker_(*worker) {}

  void Run(const Startup& startup) {
    absl::StatusOr<ForwardRequest> forward = Accept(startup);
    if (!forward.ok()) return Answer(forward.status());
    forward->context.progress = [this](const RequestProgress& progress) { Note(progress); };
    services_.engine->Forward(*std::move(forward), [this](absl::StatusOr<ForwardResult> result) {
      if (!result.ok()) return Answer(result.status());
      SetAnswer(result->pass, absl::ZeroDuration(), DataBytes(result->outputs));
      auto held = std::make_shared<ForwardResult>(*std::move(result));
      const bool posted = worker_.Post([this, held] { Analyze(*held); });
      if (posted) return;
      Answer(
          absl::ResourceExhaustedError("analyses: must not wait behind so many, retry later; "
                                       "was too many"));
    });
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    failed_ = failed_ || !ok;
    Continue();
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override {
    // Run and Answer may still be leaving their locked sections.
    {
      MutexLock lock(&mu_);
    }
    delete this;
  }

 private:
  absl::StatusOr<ForwardRequest> Accept(const Startup& startup) {
    absl::Status status = Admit();
    status.Update(ChooseRequestId(""));
    status.Update(startup.Check(request_.layer()));
    if (status.ok()) status = Hold(static_cast<int64_t>(request_.ByteSizeLong()));
    if (!status.ok()) return status;
    const absl::StatusOr<LayerInfo> info = services_.engine->GetLayer(request_.layer());
    if (!info.ok()) return info.status();
    ForwardRequest forward;
    forward.layer = request_.layer();
    // The version whose spec is read here, unless the caller expects another.
    forward.expected_version = info->version;
    if (request_.has_expected_version()) forward.expected_version = request_.expected_version();
    absl::StatusOr<AttentionInput> input = DecodeInput(request_.input());
    if (!input.ok()) return input.status();
    absl::StatusOr<AnalysisOptions> options = DecodeAnalysisOptions(request_);
    if (!options.ok()) return options.status();
    absl::StatusOr<ValidInput> valid =
        ValidateInput(info->spec, *input, services_.engine->limits().max_sequences);
    if (!valid.ok()) return valid.status();
    status = CheckAnalysis(info->spec, *valid, *options);
    if (!status.ok()) return status;
    spec_ = info->spec;
    input_ = *std::move(valid);
    options_ = *std::move(options);
    forward.input = *std::move(input);
    forward.outputs = kOutputP | kOutputContributions;
    forward.context = request_context();
    return forward;
  }

  void Analyze(const ForwardResult& forward) {
    AnalysisInput input{.spec = &spec_, .input = &input_, .p = {}, .contributions = nullptr};
    for (const NamedOutput& output : forward.outputs) {
      if (output.name == "contributions") {
        input.contributions = output.floats();
      } else if (absl::StartsWith(output.name, "p.")) {
        input.p.push_back(output.floats());
      }
    }
    if (input.contributions == nullptr || input.p.size() != input_.queries.size()) {
      return Answer(absl::InternalError("forward: must return p and contributions; was others"));
    }
    const auto stop = [this] { return cancelled() || absl::Now() >= deadline(); };
    const AnalysisResult result = AnalyzeHeads(
        input, options_, {stop, [this](const RequestProgress& progress) { Note(progress); }});
    if (cancelled()) return Answer(absl::CancelledError("call: was cancelled"));
    if (stop()) return Answer(absl::DeadlineExceededError("deadline: passed during the analysis"));
    {
      MutexLock lock(&mu_);
      EncodeAnalysis(result, forward.pass, result_.mutable_result());
    }
    Answer(absl::OkStatus());
  }

  // The last word: the result, or only a status.
  void Answer(const absl::Status& status) {
    MutexLock lock(&mu_);
    status_ = status;
    answered_ = true;
    Continue();
  }

  // Progress that comes while another is being written replaces what waits.
  void Note(const RequestProgress& progress) {
    MutexLock lock(&mu_);
    EncodeProgress(progress, progress_.mutable_progress());
    waiting_ = true;
    Continue();
  }

  // Starts what comes next; gRPC's callbacks never run inside a Start or Finish.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_) return;
    if (failed_ && answered_) status_.Update(absl::CancelledError("call: was cancelled"));
    if (answered_ && !status_.ok()) return EndStream();
    if (waiting_ && !failed_) {
      waiting_ = false;
      writing_ = true;
      message_ = progress_;
      StartWrite(&message_);
    } else if (answered_ && result_.has_result()) {
      writing_ = true;
      message_ = std::move(result_);
      result_.Clear();
      StartWrite(&message_);
    } else if (answered_) {
      EndStream();
    }
  }

  void EndStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ended_ = true;
    Finish(End(status_));
  }

  const v1::AnalyzeHeadsRequest& request_;  // gRPC keeps it until OnDone
  Worker& worker_;
  // Written before the forward starts, read after it.
  LayerSpec spec_;
  ValidInput input_;
  AnalysisOptions options_;

  Mutex mu_;
  v1::AnalyzeHeadsResponse message_;  // belongs to gRPC while `writing_`
  v1::AnalyzeHeadsResponse progress_ ABSL_GUARDED_BY(mu_);
  v1::AnalyzeHeadsResponse result_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // progress to be written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::AnalyzeHeadsResponse>* HeadwiseService::AnalyzeHeads(
    grpc::CallbackServerContext* context, const v1::AnalyzeHeadsRequest* request) {
  auto* call = new AnalyzeCall(services_, context, request, &analyses_);
  call->Run(startup_);
  return call;
}

}  // namespace headwise
