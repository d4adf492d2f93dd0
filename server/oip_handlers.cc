// SPDX-License-Identifier: Apache-2.0
#include "headwise/version.h"
#include "server/codec_oip.h"
#include "server/oip_service.h"

namespace headwise {

absl::StatusOr<LayerInfo> OipService::Find(const std::string& name,
                                           const std::string& version) const {
  if (absl::Status status = startup_.Check(name); !status.ok()) return status;
  absl::StatusOr<LayerInfo> info = services_.engine->GetLayer(name);
  if (!info.ok()) return info;
  if (absl::Status status = CheckModelVersion(*info, version); !status.ok()) return status;
  return info;
}

grpc::ServerUnaryReactor* OipService::ServerLive(grpc::CallbackServerContext* context,
                                                 const inference::ServerLiveRequest*,
                                                 inference::ServerLiveResponse* response) {
  return AnswerNow(services_, context, "ServerLive", "", [&] {
    response->set_live(true);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* OipService::ServerReady(grpc::CallbackServerContext* context,
                                                  const inference::ServerReadyRequest*,
                                                  inference::ServerReadyResponse* response) {
  return AnswerNow(services_, context, "ServerReady", "", [&] {
    response->set_ready(ready_());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* OipService::ModelReady(grpc::CallbackServerContext* context,
                                                 const inference::ModelReadyRequest* request,
                                                 inference::ModelReadyResponse* response) {
  return AnswerNow(services_, context, "ModelReady", request->name(), [&] {
    response->set_ready(Find(request->name(), request->version()).ok());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* OipService::ServerMetadata(grpc::CallbackServerContext* context,
                                                     const inference::ServerMetadataRequest*,
                                                     inference::ServerMetadataResponse* response) {
  return AnswerNow(services_, context, "ServerMetadata", "", [&] {
    response->set_name("headwise");
    response->set_version(kVersion);
    for (const char* extension : {"model_repository", "statistics", "model_configuration"}) {
      response->add_extensions(extension);
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* OipService::ModelMetadata(grpc::CallbackServerContext* context,
                                                    const inference::ModelMetadataRequest* request,
                                                    inference::ModelMetadataResponse* response) {
  return AnswerNow(services_, context, "ModelMetadata", request->name(), [&] {
    const absl::StatusOr<LayerInfo> info = Find(request->name(), request->version());
    if (info.ok()) EncodeMetadata(*info, response);
    return info.status();
  });
}

grpc::ServerUnaryReactor* OipService::ModelConfig(grpc::CallbackServerContext* context,
                                                  const inference::ModelConfigRequest* request,
                                                  inference::ModelConfigResponse* response) {
  return AnswerNow(services_, context, "ModelConfig", request->name(), [&] {
    const absl::StatusOr<LayerInfo> info = Find(request->name(), request->version());
    if (info.ok()) EncodeConfig(*info, response->mutable_config());
    return info.status();
  });
}

grpc::ServerUnaryReactor* OipService::ModelStatistics(
    grpc::CallbackServerContext* context, const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  return AnswerNow(services_, context, "ModelStatistics", request->name(), [&]() -> absl::Status {
    if (!request->name().empty()) {
      const absl::StatusOr<LayerInfo> info = Find(request->name(), request->version());
      if (info.ok()) statistics_.Encode(*info, response->add_model_stats());
      return info.status();
    }
    for (const LayerInfo& info : services_.engine->ListLayers()) {
      statistics_.Encode(info, response->add_model_stats());
    }
    return absl::OkStatus();
  });
}

}  // namespace headwise
