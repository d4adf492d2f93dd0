// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/format/counts.h"
#include "server/codec_layer.h"
#include "server/service.h"

namespace headwise {
namespace {

absl::StatusOr<std::vector<Count>> CountsOf(const LayerInfo& info,
                                            const v1::GetLayerRequest& request) {
  CountWorkload work;
  work.batch = std::max<int64_t>(1, request.batch());
  work.queries = std::max<int64_t>(1, request.queries());
  work.keys = request.keys() == 0 ? work.queries : request.keys();
  return CountLayer(info.count_shape, work, info.kernel_score_bytes);
}

}  // namespace

grpc::ServerUnaryReactor* HeadwiseService::LoadLayer(grpc::CallbackServerContext* context,
                                                     const v1::LoadLayerRequest* request,
                                                     v1::LoadLayerResponse* response) {
  auto* call = new UnaryCall(services_, context, "LoadLayer", "");
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(""));
  const absl::StatusOr<DType> dtype = DecodeLayerDType(request->dtype());
  status.Update(dtype.status());
  if (status.ok()) {
    status = services_.loader->Load(RepositoryLoad{request->name(), request->checkpoint(),
                                                   request->layer(), request->replace(), *dtype},
                                    call->cancel_token(),
                                    [call, response](absl::StatusOr<LayerInfo> info) {
                                      if (info.ok())
                                        EncodeSummary(*info, response->mutable_layer());
                                      call->Reply(info.status());
                                    });
    if (status.ok()) return call;
  }
  call->Reply(status);
  return call;
}

grpc::ServerUnaryReactor* HeadwiseService::UnloadLayer(grpc::CallbackServerContext* context,
                                                       const v1::UnloadLayerRequest* request,
                                                       v1::UnloadLayerResponse* response) {
  return AnswerNow(services_, context, "UnloadLayer", "", [&]() -> absl::Status {
    const absl::StatusOr<LayerInfo> info = services_.loader->Unload(request->name());
    if (info.ok()) EncodeSummary(*info, response->mutable_layer());
    return info.status();
  });
}

grpc::ServerUnaryReactor* HeadwiseService::ListLayers(grpc::CallbackServerContext* context,
                                                      const v1::ListLayersRequest*,
                                                      v1::ListLayersResponse* response) {
  return AnswerNow(services_, context, "ListLayers", "", [&] {
    std::map<std::string, v1::LayerSummary> by_name;
    for (const std::string& name : startup_.PendingNames()) {
      by_name[name].set_name(name);
      by_name[name].set_state(v1::LOADING);
    }
    for (const std::string& name : startup_.FailedNames()) {
      by_name[name].set_name(name);
      by_name[name].set_state(v1::FAILED);
    }
    for (const LayerInfo& info : services_.engine->ListLayers()) {
      EncodeSummary(info, &by_name[info.name]);
    }
    for (auto& [name, summary] : by_name) *response->add_layers() = std::move(summary);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* HeadwiseService::GetLayer(grpc::CallbackServerContext* context,
                                                    const v1::GetLayerRequest* request,
                                                    v1::LayerDetails* response) {
  return AnswerNow(services_, context, "GetLayer", request->name(), [&]() -> absl::Status {
    if (absl::Status status = startup_.Check(request->name()); !status.ok()) return status;
    const absl::StatusOr<LayerInfo> info = services_.engine->GetLayer(request->name());
    if (!info.ok()) return info.status();
    const absl::StatusOr<std::vector<Count>> counts = CountsOf(*info, *request);
    if (!counts.ok()) return counts.status();
    EncodeDetails(*info, *counts, response);
    return absl::OkStatus();
  });
}

}  // namespace headwise
