// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_OIP_SERVICE_H_
#define HEADWISE_SERVER_OIP_SERVICE_H_

#include <functional>
#include <string>
#include <utility>

#include "inference/inference.grpc.pb.h"
#include "server/call.h"
#include "server/oip_statistics.h"
#include "server/startup.h"

namespace headwise {

// The Open Inference Protocol v2 over the engine, with Triton's repository, statistics and model
// configuration extensions, so that clients of it work: a layer is a model, its version the
// layer's. What Triton has besides (shared memory, tracing, streams) is UNIMPLEMENTED.
// Thread-safe.
class OipService final : public inference::GRPCInferenceService::CallbackService {
 public:
  // What is pointed to must outlive it. `ready`: every layer given at start-up is there, and the
  // server isn't draining.
  OipService(const Services& services, const Startup* startup, OipStatistics* statistics,
             std::function<bool()> ready)
      : services_(services),
        startup_(*startup),
        statistics_(*statistics),
        ready_(std::move(ready)) {
    services_.service = inference::GRPCInferenceService::service_full_name();
  }

  // oip_infer_handler.cc
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override;
  // oip_handlers.cc
  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context,
                                       const inference::ServerLiveRequest* request,
                                       inference::ServerLiveResponse* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context,
                                        const inference::ServerReadyRequest* request,
                                        inference::ServerReadyResponse* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const inference::ServerMetadataRequest* request,
                                           inference::ServerMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* context,
                                        const inference::ModelConfigRequest* request,
                                        inference::ModelConfigResponse* response) override;
  grpc::ServerUnaryReactor* ModelStatistics(grpc::CallbackServerContext* context,
                                            const inference::ModelStatisticsRequest* request,
                                            inference::ModelStatisticsResponse* response) override;
  // oip_repository_handlers.cc
  grpc::ServerUnaryReactor* RepositoryIndex(grpc::CallbackServerContext* context,
                                            const inference::RepositoryIndexRequest* request,
                                            inference::RepositoryIndexResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryModelLoad(
      grpc::CallbackServerContext* context, const inference::RepositoryModelLoadRequest* request,
      inference::RepositoryModelLoadResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(
      grpc::CallbackServerContext* context, const inference::RepositoryModelUnloadRequest* request,
      inference::RepositoryModelUnloadResponse* response) override;

 private:
  // The loaded layer of that name and version. NOT_FOUND; UNAVAILABLE while it is loading.
  absl::StatusOr<LayerInfo> Find(const std::string& name, const std::string& version) const;

  Services services_;  // as given, under this service's name
  const Startup& startup_;
  OipStatistics& statistics_;
  const std::function<bool()> ready_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_OIP_SERVICE_H_
