// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/codec_ablation.h"
#include "server/service.h"

namespace headwise {
namespace {

constexpr size_t kMaxChunkBytes = size_t{1} << 20;

// Figures are kept and sent for every ablation and sequence; both are the caller's to multiply.
constexpr int64_t kEffectBytes = 64;

absl::Status CheckEffects(const AblateRequest& request, int64_t max_output_bytes) {
  const AttentionInput& input = request.input;
  const bool batched = input.lengths.empty() && input.x.shape.size() == 3;
  const int64_t sequences =
      batched ? input.x.dim(0) : static_cast<int64_t>(std::max<size_t>(1, input.lengths.size()));
  const int64_t ablations = static_cast<int64_t>(request.ablations.size());
  if (ablations == 0 || sequences <= max_output_bytes / kEffectBytes / ablations) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "ablations: effects of all ablations and sequences must fit ", max_output_bytes,
      " bytes (--max-output-bytes); was ", ablations, " ablations of ", sequences, " sequences"));
}

// One Ablate: progress from when the engine has taken the request, then the result, then its
// tensors in chunks. Progress that comes while another is being written replaces what waits.
// Deletes itself when gRPC is done with it.
class AblateCall final : public grpc::ServerWriteReactor<v1::AblateResponse>, public Call {
 public:
  AblateCall(const Services& services, grpc::CallbackServerContext* context,
             const v1::AblateRequest* request)
      : Call(services, context, "Ablate", request->layer()), request_(*request) {}

  void Run(const Startup& startup) {
    absl::StatusOr<AblateRequest> accepted = Accept(startup);
    if (!accepted.ok()) {
      MutexLock lock(&mu_);
      EndStream(accepted.status());
      return;
    }
    accepted->context.progress = [this](const RequestProgress& progress) { Note(progress); };
    services_.engine->Ablate(*std::move(accepted), [this](absl::StatusOr<AblateResult> result) {
      Answer(std::move(result));
    });
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) failed_ = true;
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
  enum class Stage { kWaiting, kResult, kChunks, kEnded };

  absl::StatusOr<AblateRequest> Accept(const Startup& startup) {
    absl::Status status = Admit();
    status.Update(ChooseRequestId(""));
    status.Update(startup.Check(request_.layer()));
    if (status.ok()) status = Hold(static_cast<int64_t>(request_.ByteSizeLong()));
    if (!status.ok()) return status;
    absl::StatusOr<AblateRequest> decoded = DecodeAblate(request_);
    if (!decoded.ok()) return decoded;
    status = CheckEffects(*decoded, services_.options->max_output_bytes);
    if (!status.ok()) return status;
    decoded->context = request_context(request_.priority());
    return decoded;
  }

  void Answer(absl::StatusOr<AblateResult> result) {
    MutexLock lock(&mu_);
    if (result.ok()) {
      SetAnswer(result->pass, absl::ZeroDuration(), DataBytes(result->outputs));
      result_ = *std::move(result);
    } else {
      status_ = result.status();
    }
    stage_ = Stage::kResult;
    Continue();
  }

  void Note(const RequestProgress& progress) {
    MutexLock lock(&mu_);
    EncodeProgress(progress, &progress_);
    has_progress_ = true;
    Continue();
  }

  // Starts what comes next; gRPC's callbacks never run inside a Start or Finish.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || stage_ == Stage::kEnded) return;
    const bool alive = status_.ok() && !failed_ && !cancelled();
    if (has_progress_ && alive && stage_ <= Stage::kResult) return WriteProgress();
    if (stage_ == Stage::kWaiting) return;
    if (failed_ || cancelled()) status_.Update(absl::CancelledError("call: was cancelled"));
    if (!status_.ok()) {
      EndStream(status_);
    } else if (stage_ == Stage::kResult) {
      stage_ = Stage::kChunks;
      WriteResult();
    } else if (!WriteChunk()) {
      EndStream(absl::OkStatus());
    }
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    StartWrite(&message_);
  }

  void WriteProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    has_progress_ = false;
    *message_.mutable_progress() = progress_;
    Write();
  }

  void WriteResult() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    EncodeAblate(request_, request_id(), &result_, message_.mutable_result());
    Write();
  }

  // False: all bytes have been written.
  bool WriteChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (tensor_ < result_.outputs.size() && offset_ == result_.outputs[tensor_].data.size()) {
      result_.outputs[tensor_].data = std::string();
      ++tensor_;
      offset_ = 0;
    }
    if (tensor_ == result_.outputs.size()) return false;
    const std::string& data = result_.outputs[tensor_].data;
    const size_t bytes = std::min(kMaxChunkBytes, data.size() - offset_);
    v1::TensorChunk* chunk = message_.mutable_chunk();
    chunk->set_tensor(static_cast<uint32_t>(tensor_));
    chunk->set_offset(static_cast<int64_t>(offset_));
    chunk->set_data(data.data() + offset_, bytes);
    offset_ += bytes;
    Write();
    return true;
  }

  void EndStream(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    stage_ = Stage::kEnded;
    Finish(End(status));
  }

  const v1::AblateRequest& request_;  // gRPC keeps it until OnDone
  Mutex mu_;
  v1::AblateResponse message_;  // belongs to gRPC while `writing_`
  Stage stage_ ABSL_GUARDED_BY(mu_) = Stage::kWaiting;
  v1::Progress progress_ ABSL_GUARDED_BY(mu_);
  bool has_progress_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  AblateResult result_ ABSL_GUARDED_BY(mu_);
  size_t tensor_ ABSL_GUARDED_BY(mu_) = 0;
  size_t offset_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::AblateResponse>* HeadwiseService::Ablate(
    grpc::CallbackServerContext* context, const v1::AblateRequest* request) {
  auto* call = new AblateCall(services_, context, request);
  call->Run(startup_);
  return call;
}

}  // namespace headwise
