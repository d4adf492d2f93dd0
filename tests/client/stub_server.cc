// SPDX-License-Identifier: Apache-2.0
#include "tests/client/stub_server.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "headwise/v1/headwise.grpc.pb.h"

namespace headwise::client {
namespace {

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

class StubServerImpl : public StubServer, private v1::Headwise::Service {
 public:
  explicit StubServerImpl(StubAnswers answers) : answers_(std::move(answers)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(answers_.max_message_bytes);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~StubServerImpl() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string target() const override { return absl::StrCat("127.0.0.1:", port_); }
  int port() const override { return port_; }
  int get_layer_calls() const override { return get_layer_calls_; }
  std::vector<v1::UploadLayerRequest> uploaded() const override {
    MutexLock lock(&mu_);
    return uploaded_;
  }

 private:
  grpc::Status GetLayer(grpc::ServerContext*, const v1::GetLayerRequest* request,
                        v1::LayerDetails* details) override {
    ++get_layer_calls_;
    details->set_name(request->name());
    details->mutable_spec()->set_d_model(answers_.d_model);
    return grpc::Status::OK;
  }

  grpc::Status Forward(grpc::ServerContext* context, const v1::ForwardRequest* request,
                       v1::ForwardResponse* response) override {
    context->AddTrailingMetadata("headwise-queue-us", "7");
    context->AddTrailingMetadata("headwise-compute-us", "40");
    if (answers_.forward) return ToGrpc(answers_.forward(*request, response));
    const v1::Tensor& x = request->input().x();
    v1::NamedTensor* y = response->add_tensors();
    y->set_name("y");
    y->set_dtype(x.dtype());
    *y->mutable_shape() = x.shape();
    y->set_data(x.data());
    return grpc::Status::OK;
  }

  grpc::Status Ablate(grpc::ServerContext*, const v1::AblateRequest*,
                      grpc::ServerWriter<v1::AblateResponse>* writer) override {
    for (const v1::AblateResponse& part : answers_.ablate_parts) writer->Write(part);
    return ToGrpc(answers_.ablate_status);
  }

  grpc::Status UploadLayer(grpc::ServerContext*, grpc::ServerReader<v1::UploadLayerRequest>* reader,
                           v1::LoadLayerResponse* response) override {
    if (!answers_.upload_status.ok()) return ToGrpc(answers_.upload_status);
    v1::UploadLayerRequest request;
    while (reader->Read(&request)) {
      if (request.has_header()) response->mutable_layer()->set_name(request.header().name());
      MutexLock lock(&mu_);
      uploaded_.push_back(request);
    }
    return grpc::Status::OK;
  }

  const StubAnswers answers_;
  int port_ = 0;
  std::atomic<int> get_layer_calls_ = 0;
  mutable Mutex mu_;
  std::vector<v1::UploadLayerRequest> uploaded_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<StubServer> StubServer::Start(StubAnswers answers) {
  return std::make_unique<StubServerImpl>(std::move(answers));
}

}  // namespace headwise::client
