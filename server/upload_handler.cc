// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/alarm.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/codec_layer.h"
#include "server/service.h"
#include "server/upload.h"

namespace headwise {
namespace {

// One UploadLayer: reads until the stream's end, then hands over to the loader. Deletes itself when
// gRPC is done with it.
class UploadCall final : public grpc::ServerReadReactor<v1::UploadLayerRequest>, public Call {
 public:
  UploadCall(const Services& services, grpc::CallbackServerContext* context,
             v1::LoadLayerResponse* response)
      : Call(services, context, "UploadLayer", ""),
        context_(context),
        response_(response),
        timeout_(std::make_shared<Timeout>(this)) {}

  ~UploadCall() override { services_.upload_bytes->fetch_sub(reserved_bytes_); }

  void Start() {
    absl::Status status = Admit();
    status.Update(ChooseRequestId(""));
    MutexLock lock(&mu_);
    if (!status.ok()) return EndStream(status);
    StartRead(&message_);
    const absl::Time until = absl::Now() + services_.options->upload_timeout;
    alarm_.Set(absl::ToChronoTime(until), [timeout = timeout_](bool fired) {
      MutexLock timeout_lock(&timeout->mu);
      if (fired && timeout->call != nullptr) timeout->call->OnTimeout();
    });
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(&mu_);
    if (stage_ != Stage::kReading) return;
    if (!ok) return context_->IsCancelled() ? EndStream(CancelledCall()) : HandOver();
    if (absl::Status status = Take(); !status.ok()) return EndStream(status);
    StartRead(&message_);
  }

  void OnCancel() override {
    Cancel();
    EndIfReading(CancelledCall());
  }

  void Abort() override {
    Call::Abort();
    EndIfReading(CancelledCall());
  }

  void OnDone() override {
    alarm_.Cancel();
    {
      MutexLock lock(&timeout_->mu);
      timeout_->call = nullptr;
    }
    {
      MutexLock lock(&mu_);
    }  // whoever finished the stream has left its locked section
    delete this;
  }

 private:
  enum class Stage { kReading, kLoading, kEnded };

  // The alarm may go off after the call has gone: it reaches the call through this only.
  struct Timeout {
    explicit Timeout(UploadCall* upload) : call(upload) {}
    Mutex mu;
    UploadCall* call ABSL_GUARDED_BY(mu);
  };

  static absl::Status CancelledCall() { return absl::CancelledError("call: was cancelled"); }

  void OnTimeout() {
    EndIfReading(absl::DeadlineExceededError(
        absl::StrCat("upload: must be complete within --upload-timeout, ",
                     absl::FormatDuration(services_.options->upload_timeout), "; was not")));
  }

  void EndIfReading(const absl::Status& status) {
    MutexLock lock(&mu_);
    if (stage_ == Stage::kReading) EndStream(status);
  }

  absl::Status Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (message_.has_chunk()) return upload_.Add(message_.chunk());
    if (!message_.has_header()) {
      return absl::InvalidArgumentError("part: must be a header or a chunk; was absent");
    }
    const int64_t limit = services_.options->max_upload_bytes;
    if (absl::Status status = upload_.Begin(message_.header(), limit); !status.ok()) return status;
    if (absl::Status status = Reserve(limit); !status.ok()) return status;
    StartSendInitialMetadata();  // tells a caller who waits for it that the bytes are welcome
    return absl::OkStatus();
  }

  // All uploads under way share one budget.
  absl::Status Reserve(int64_t limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    reserved_bytes_ = upload_.total_bytes();
    const int64_t together = services_.upload_bytes->fetch_add(reserved_bytes_) + reserved_bytes_;
    if (together <= limit) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("uploads: must be at most ", limit,
                     " bytes together (--max-upload-bytes), retry later; was ", together));
  }

  void HandOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::StatusOr<UploadLoad> load = upload_.Finish();
    if (!load.ok()) return EndStream(load.status());
    stage_ = Stage::kLoading;
    const absl::Status posted = services_.loader->Load(
        *std::move(load), cancel_token(), [this](absl::StatusOr<LayerInfo> info) {
          MutexLock lock(&mu_);
          if (info.ok()) EncodeSummary(*info, response_->mutable_layer());
          EndStream(info.status());
        });
    if (!posted.ok()) EndStream(posted);
  }

  void EndStream(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    stage_ = Stage::kEnded;
    Finish(End(status));
  }

  grpc::CallbackServerContext* const context_;
  v1::LoadLayerResponse* const response_;
  const std::shared_ptr<Timeout> timeout_;
  grpc::Alarm alarm_;
  Mutex mu_;
  v1::UploadLayerRequest message_;  // belongs to gRPC while a read is under way
  Stage stage_ ABSL_GUARDED_BY(mu_) = Stage::kReading;
  Upload upload_ ABSL_GUARDED_BY(mu_);
  int64_t reserved_bytes_ = 0;
};

}  // namespace

grpc::ServerReadReactor<v1::UploadLayerRequest>* HeadwiseService::UploadLayer(
    grpc::CallbackServerContext* context, v1::LoadLayerResponse* response) {
  auto* call = new UploadCall(services_, context, response);
  call->Start();
  return call;
}

grpc::ServerUnaryReactor* HeadwiseService::PlanUpload(grpc::CallbackServerContext* context,
                                                      const v1::PlanUploadRequest* request,
                                                      v1::PlanUploadResponse* response) {
  return AnswerNow(services_, context, "PlanUpload", "", [&]() -> absl::Status {
    if (request->config_json().size() > kMaxConfigJsonBytes) {
      return absl::InvalidArgumentError(absl::StrCat("config_json: must be at most ",
                                                     kMaxConfigJsonBytes, " bytes; was ",
                                                     request->config_json().size()));
    }
    std::vector<StoredTensorInfo> stored;
    for (const v1::StoredTensor& wire : request->tensors()) {
      stored.push_back(DecodeStoredTensor(wire));
    }
    absl::StatusOr<LayerPlan> plan = PlanLayer(request->config_json(), request->layer(), stored);
    if (!plan.ok()) return plan.status();
    for (TensorUse& use : plan->tensors) response->add_tensors(std::move(use.name));
    return absl::OkStatus();
  });
}

}  // namespace headwise
