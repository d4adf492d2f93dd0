// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ablate_parts.h"
#include "client/balance.h"
#include "client/channel.h"
#include "client/report.h"
#include "client/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "headwise/v1/headwise.grpc.pb.h"

namespace headwise::client {
namespace {

class GrpcForwardStream : public ForwardStream {
 public:
  using ToStatus = std::function<absl::Status(const grpc::Status&)>;
  GrpcForwardStream(v1::Headwise::Stub* stub, const ClientOptions& options, ToStatus to_status)
      : to_status_(std::move(to_status)) {
    PrepareContext(options.timeout, options.client_id, options.security.token, &context_);
    stream_ = stub->ForwardStream(&context_);
  }
  ~GrpcForwardStream() override {
    if (finished_) return;
    context_.TryCancel();
    (void)stream_->Finish();
  }

  bool Send(const v1::ForwardRequest& request) override { return stream_->Write(request); }
  void CloseSending() override { stream_->WritesDone(); }
  std::optional<v1::ForwardStreamResponse> Receive() override {
    v1::ForwardStreamResponse answer;
    if (!stream_->Read(&answer)) return std::nullopt;
    return answer;
  }
  absl::Status Finish() override {
    finished_ = true;
    const grpc::Status status = stream_->Finish();
    return status.ok() ? absl::OkStatus() : to_status_(status);
  }

 private:
  const ToStatus to_status_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardStreamResponse>> stream_;
  bool finished_ = false;
};

// What the server says of a call that it works on; its memory before it starts.
void Tell(const v1::Progress& at, const ProgressCallback& progress) {
  if (!progress) return;
  const std::string memory =
      at.bytes() > 0 ? absl::StrCat(", takes ", HumanBytes(at.bytes()), " there") : "";
  progress(absl::StrCat(at.stage(), memory), at.done(), at.total());
}

class GrpcClient : public Client {
 public:
  // `resolvable`: `target` as gRPC takes it.
  GrpcClient(std::string target, const std::string& resolvable, ClientOptions options)
      : target_(std::move(target)),
        options_(options),
        channel_(MakeChannel(resolvable, options.own_connection, options.security)),
        stub_(v1::Headwise::NewStub(channel_)) {}

  absl::StatusOr<v1::ForwardResponse> Forward(const v1::ForwardRequest& request) override {
    return CallIdempotent<v1::ForwardResponse>(&v1::Headwise::Stub::Forward, request);
  }
  absl::StatusOr<v1::LoadLayerResponse> LoadLayer(const v1::LoadLayerRequest& request) override {
    return Call<v1::LoadLayerResponse>(&v1::Headwise::Stub::LoadLayer, request);
  }
  absl::StatusOr<v1::PlanUploadResponse> PlanUpload(const v1::PlanUploadRequest& request) override {
    return CallIdempotent<v1::PlanUploadResponse>(&v1::Headwise::Stub::PlanUpload, request);
  }
  absl::StatusOr<v1::UnloadLayerResponse> UnloadLayer(const std::string& name) override {
    v1::UnloadLayerRequest request;
    request.set_name(name);
    return Call<v1::UnloadLayerResponse>(&v1::Headwise::Stub::UnloadLayer, request);
  }
  absl::StatusOr<v1::ListLayersResponse> ListLayers() override {
    return CallIdempotent<v1::ListLayersResponse>(&v1::Headwise::Stub::ListLayers,
                                                  v1::ListLayersRequest());
  }
  absl::StatusOr<v1::LayerDetails> GetLayer(const v1::GetLayerRequest& request) override {
    return CallIdempotent<v1::LayerDetails>(&v1::Headwise::Stub::GetLayer, request);
  }
  absl::StatusOr<v1::LoadLayerResponse> DeriveLayer(
      const v1::DeriveLayerRequest& request) override {
    return Call<v1::LoadLayerResponse>(&v1::Headwise::Stub::DeriveLayer, request);
  }
  absl::StatusOr<v1::SaveLayerResponse> SaveLayer(const v1::SaveLayerRequest& request) override {
    return Call<v1::SaveLayerResponse>(&v1::Headwise::Stub::SaveLayer, request);
  }

  absl::Status DownloadLayer(
      const std::string& name,
      const std::function<absl::Status(const v1::DownloadLayerResponse&)>& take) override {
    grpc::ClientContext context;
    Prepare(&context);
    v1::DownloadLayerRequest request;
    request.set_name(name);
    auto reader = stub_->DownloadLayer(&context, request);
    v1::DownloadLayerResponse part;
    absl::Status taken;
    while (taken.ok() && reader->Read(&part)) taken = take(part);
    if (!taken.ok()) context.TryCancel();
    const grpc::Status status = reader->Finish();
    if (!taken.ok()) return taken;
    return status.ok() ? absl::OkStatus() : Error(status);
  }

  absl::StatusOr<v1::ListRepositoryResponse> ListRepository() override {
    return CallIdempotent<v1::ListRepositoryResponse>(&v1::Headwise::Stub::ListRepository,
                                                      v1::ListRepositoryRequest());
  }
  absl::StatusOr<v1::ServerInfoResponse> ServerInfo() override {
    return CallIdempotent<v1::ServerInfoResponse>(&v1::Headwise::Stub::ServerInfo,
                                                  v1::ServerInfoRequest());
  }

  absl::StatusOr<std::string> Health(const std::string& service) override {
    grpc::ClientContext context;
    Prepare(&context);
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status =
        grpc::health::v1::Health::NewStub(channel_)->Check(&context, request, &response);
    if (!status.ok()) return Error(status);
    return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
  }

  std::unique_ptr<ForwardStream> OpenForwardStream() override {
    return std::make_unique<GrpcForwardStream>(
        stub_.get(), options_, [this](const grpc::Status& status) { return Error(status); });
  }

  absl::StatusOr<v1::AblateResult> Ablate(const v1::AblateRequest& request,
                                          const ProgressCallback& progress) override {
    return Again<v1::AblateResult>(
        [&](absl::Duration left) { return AblateOnce(request, progress, left); });
  }

  absl::StatusOr<v1::AblateResult> AblateOnce(const v1::AblateRequest& request,
                                              const ProgressCallback& progress,
                                              absl::Duration left) {
    grpc::ClientContext context;
    Prepare(left, &context);
    auto reader = stub_->Ablate(&context, request);
    AblateParts parts;
    absl::Status added;
    v1::AblateResponse response;
    while (added.ok() && reader->Read(&response)) {
      if (response.has_progress()) Tell(response.progress(), progress);
      added = parts.Add(&response);
    }
    if (!added.ok()) context.TryCancel();
    const grpc::Status status = reader->Finish();
    if (!added.ok()) return added;
    if (!status.ok()) return Error(status);
    return parts.Take();
  }

  absl::StatusOr<v1::AnalyzeHeadsResult> AnalyzeHeads(const v1::AnalyzeHeadsRequest& request,
                                                      const ProgressCallback& progress) override {
    return Again<v1::AnalyzeHeadsResult>(
        [&](absl::Duration left) { return AnalyzeOnce(request, progress, left); });
  }

  absl::StatusOr<v1::AnalyzeHeadsResult> AnalyzeOnce(const v1::AnalyzeHeadsRequest& request,
                                                     const ProgressCallback& progress,
                                                     absl::Duration left) {
    grpc::ClientContext context;
    Prepare(left, &context);
    return ReadResult<v1::AnalyzeHeadsResponse, v1::AnalyzeHeadsResult>(
        stub_->AnalyzeHeads(&context, request).get(), progress);
  }

  absl::StatusOr<v1::AuditResult> Audit(const v1::AuditRequest& request,
                                        const ProgressCallback& progress) override {
    return Again<v1::AuditResult>(
        [&](absl::Duration left) { return AuditOnce(request, progress, left); });
  }

  absl::StatusOr<v1::AuditResult> AuditOnce(const v1::AuditRequest& request,
                                            const ProgressCallback& progress, absl::Duration left) {
    grpc::ClientContext context;
    Prepare(left, &context);
    return ReadResult<v1::AuditResponse, v1::AuditResult>(stub_->Audit(&context, request).get(),
                                                          progress);
  }

  absl::StatusOr<v1::LoadLayerResponse> Upload(const v1::UploadHeader& header,
                                               const TensorSource& source,
                                               const ProgressCallback& progress) override {
    grpc::ClientContext context;
    Prepare(&context);
    v1::LoadLayerResponse response;
    auto writer = stub_->UploadLayer(&context, &response);
    v1::UploadLayerRequest first;
    *first.mutable_header() = header;
    bool open = writer->Write(first);
    int64_t sent = 0;
    for (int i = 0; open && i < header.tensors_size(); ++i) {
      absl::StatusOr<OwnedTensor> tensor = source.Read(header.tensors(i).name());
      if (!tensor.ok()) {
        context.TryCancel();
        (void)writer->Finish();
        return tensor.status();
      }
      const absl::string_view bytes(reinterpret_cast<const char*>(tensor->data.data()),
                                    tensor->data.size());
      open = SendChunks(static_cast<uint32_t>(i), bytes, [&](const v1::UploadLayerRequest& part) {
        sent += static_cast<int64_t>(part.chunk().data().size());
        if (progress) progress("uploading", sent, header.total_bytes());
        return writer->Write(part);
      });
    }
    // A server that has refused already closes the stream: its status says why.
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (!status.ok()) return Error(status);
    return response;
  }

 private:
  void Prepare(absl::Duration timeout, grpc::ClientContext* context) const {
    PrepareContext(timeout, options_.client_id, options_.security.token, context);
  }
  void Prepare(grpc::ClientContext* context) const { Prepare(options_.timeout, context); }

  absl::Status Error(const grpc::Status& status) const {
    return ToAbslStatus(status.error_code(), status.error_message(), target_, options_.timeout);
  }

  template <typename Request, typename Response>
  using Method = grpc::Status (v1::Headwise::Stub::*)(grpc::ClientContext*, const Request&,
                                                      Response*);

  // A stream of progress that ends in one result.
  template <typename Response, typename Result>
  absl::StatusOr<Result> ReadResult(grpc::ClientReader<Response>* reader,
                                    const ProgressCallback& progress) const {
    Response response;
    Result result;
    bool has_result = false;
    while (reader->Read(&response)) {
      if (response.has_progress()) Tell(response.progress(), progress);
      if (!response.has_result()) continue;
      result = std::move(*response.mutable_result());
      has_result = true;
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return Error(status);
    if (!has_result) return absl::InternalError("answer: must hold a result; was without");
    return result;
  }

  // Once.
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(Method<Request, Response> method, const Request& request) const {
    grpc::ClientContext context;
    Prepare(&context);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return Error(status);
    return response;
  }

  // Again where that may help.
  template <typename Response, typename Request>
  absl::StatusOr<Response> CallIdempotent(Method<Request, Response> method,
                                          const Request& request) const {
    return Again<Response>([&](absl::Duration left) -> absl::StatusOr<Response> {
      grpc::ClientContext context;
      Prepare(left, &context);
      Response response;
      const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
      if (!status.ok()) return Error(status);
      return response;
    });
  }

  template <typename Response>
  absl::StatusOr<Response> Again(
      const std::function<absl::StatusOr<Response>(absl::Duration left)>& once) const {
    absl::StatusOr<Response> answer = absl::UnknownError("");
    (void)retrier_.Run(options_.timeout, [&](absl::Duration left) {
      answer = once(left);
      return answer.status();
    });
    return answer;
  }

  const std::string target_;
  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Headwise::Stub> stub_;
  mutable Retrier retrier_{options_.retry};
};

v1::UploadHeader HeaderFor(const UploadTarget& target) {
  v1::UploadHeader header;
  header.set_name(target.name);
  header.set_dtype(target.dtype);
  header.set_replace(target.replace);
  return header;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target,
                                                        const ClientOptions& options) {
  if (absl::Status secure = CheckSecurity(target, options.security); !secure.ok()) return secure;
  if (target.empty()) {
    return absl::InvalidArgumentError("server: must be HOST:PORT; was empty");
  }
  CLIENT_ASSIGN_OR_RETURN(const std::string resolvable, ResolvableTarget(target));
  return std::make_unique<GrpcClient>(target, resolvable, options);
}

absl::StatusOr<v1::LoadLayerResponse> Client::UploadCheckpointLayer(
    const std::string& dir, const UploadTarget& target, const std::string& layer,
    const ProgressCallback& progress) {
  CLIENT_ASSIGN_OR_RETURN(const auto folder, CheckpointFolder::Open(dir));
  v1::PlanUploadRequest plan;
  plan.set_config_json(folder->config_json());
  plan.set_layer(layer);
  for (const v1::StoredTensor& tensor : folder->tensors()) *plan.add_tensors() = tensor;
  CLIENT_ASSIGN_OR_RETURN(const v1::PlanUploadResponse planned, PlanUpload(plan));

  v1::UploadHeader header = HeaderFor(target);
  v1::CheckpointDescription* checkpoint = header.mutable_checkpoint();
  checkpoint->set_dir(dir);
  checkpoint->set_config_json(folder->config_json());
  checkpoint->set_layer(layer);
  CLIENT_RETURN_IF_ERROR(
      DescribeTensors(*folder, {planned.tensors().begin(), planned.tensors().end()}, &header));
  return Upload(header, *folder, progress);
}

absl::StatusOr<v1::LoadLayerResponse> Client::UploadSpecLayer(const std::string& spec_json,
                                                              const std::string& weights_file,
                                                              const UploadTarget& target,
                                                              const ProgressCallback& progress) {
  v1::UploadHeader header = HeaderFor(target);
  CLIENT_ASSIGN_OR_RETURN(*header.mutable_spec(), ParseSpec(spec_json));
  CLIENT_ASSIGN_OR_RETURN(const auto weights, WeightsFile::Open(weights_file));
  CLIENT_RETURN_IF_ERROR(
      DescribeTensors(*weights, SpecTensorNames(header.spec().tensors()), &header));
  return Upload(header, *weights, progress);
}

absl::StatusOr<v1::LoadLayerResponse> Client::UploadSavedLayer(const std::string& file,
                                                               const UploadTarget& target,
                                                               const ProgressCallback& progress) {
  v1::UploadHeader header = HeaderFor(target);
  CLIENT_ASSIGN_OR_RETURN(const auto weights, WeightsFile::Open(file));
  CLIENT_RETURN_IF_ERROR(DescribeSavedLayer(*weights, file, &header));
  const absl::Status described =
      DescribeTensors(*weights, SpecTensorNames(header.spec().tensors()), &header);
  if (absl::IsNotFound(described)) {  // the file contradicts itself
    return absl::DataLossError(absl::StrCat(file, ": ", described.message()));
  }
  CLIENT_RETURN_IF_ERROR(described);
  return Upload(header, *weights, progress);
}

}  // namespace headwise::client
