// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_SERVICE_H_
#define HEADWISE_SERVER_SERVICE_H_

#include <string>

#include "headwise/v1/headwise.grpc.pb.h"
#include "server/call.h"
#include "server/freeing_allocator.h"
#include "server/startup.h"
#include "server/worker.h"

namespace headwise {

// headwise.v1.Headwise over the engine: each method decodes, calls once into core and encodes. The
// methods are in *_handler.cc and *_handlers.cc. Thread-safe.
class HeadwiseService final : public v1::Headwise::CallbackService {
 public:
  // Both must outlive it.
  HeadwiseService(const Services* services, const Startup* startup)
      : services_(*services), startup_(*startup) {
    SetMessageAllocatorFor_Forward(&forward_messages_);
  }

  // forward_handler.cc
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const v1::ForwardRequest* request,
                                    v1::ForwardResponse* response) override;
  // forward_stream_handler.cc
  grpc::ServerBidiReactor<v1::ForwardRequest, v1::ForwardStreamResponse>* ForwardStream(
      grpc::CallbackServerContext* context) override;
  // ablate_handler.cc
  grpc::ServerWriteReactor<v1::AblateResponse>* Ablate(grpc::CallbackServerContext* context,
                                                       const v1::AblateRequest* request) override;
  // layer_handlers.cc
  grpc::ServerUnaryReactor* LoadLayer(grpc::CallbackServerContext* context,
                                      const v1::LoadLayerRequest* request,
                                      v1::LoadLayerResponse* response) override;
  grpc::ServerUnaryReactor* UnloadLayer(grpc::CallbackServerContext* context,
                                        const v1::UnloadLayerRequest* request,
                                        v1::UnloadLayerResponse* response) override;
  grpc::ServerUnaryReactor* ListLayers(grpc::CallbackServerContext* context,
                                       const v1::ListLayersRequest* request,
                                       v1::ListLayersResponse* response) override;
  grpc::ServerUnaryReactor* GetLayer(grpc::CallbackServerContext* context,
                                     const v1::GetLayerRequest* request,
                                     v1::LayerDetails* response) override;
  // analyze_handler.cc
  grpc::ServerWriteReactor<v1::AnalyzeHeadsResponse>* AnalyzeHeads(
      grpc::CallbackServerContext* context, const v1::AnalyzeHeadsRequest* request) override;
  // derive_handler.cc
  grpc::ServerUnaryReactor* DeriveLayer(grpc::CallbackServerContext* context,
                                        const v1::DeriveLayerRequest* request,
                                        v1::LoadLayerResponse* response) override;
  // upload_handler.cc
  grpc::ServerUnaryReactor* PlanUpload(grpc::CallbackServerContext* context,
                                       const v1::PlanUploadRequest* request,
                                       v1::PlanUploadResponse* response) override;
  grpc::ServerReadReactor<v1::UploadLayerRequest>* UploadLayer(
      grpc::CallbackServerContext* context, v1::LoadLayerResponse* response) override;
  // info_handlers.cc
  grpc::ServerUnaryReactor* ListRepository(grpc::CallbackServerContext* context,
                                           const v1::ListRepositoryRequest* request,
                                           v1::ListRepositoryResponse* response) override;
  grpc::ServerUnaryReactor* ServerInfo(grpc::CallbackServerContext* context,
                                       const v1::ServerInfoRequest* request,
                                       v1::ServerInfoResponse* response) override;
  // audit_handler.cc
  grpc::ServerWriteReactor<v1::AuditResponse>* Audit(grpc::CallbackServerContext* context,
                                                     const v1::AuditRequest* request) override;
  // save_handlers.cc
  grpc::ServerUnaryReactor* SaveLayer(grpc::CallbackServerContext* context,
                                      const v1::SaveLayerRequest* request,
                                      v1::SaveLayerResponse* response) override;
  grpc::ServerWriteReactor<v1::DownloadLayerResponse>* DownloadLayer(
      grpc::CallbackServerContext* context, const v1::DownloadLayerRequest* request) override;

 private:
  const Services& services_;
  const Startup& startup_;
  FreeingAllocator<v1::ForwardRequest, v1::ForwardResponse> forward_messages_;
  Worker analyses_{64};  // last: its jobs use the rest
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_SERVICE_H_
