// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "headwise/version.h"
#include "server/flags.h"
#include "server/service.h"

namespace headwise {
namespace {

void EncodeCheckpoint(CheckpointSummary&& summary, v1::CheckpointSummary* wire) {
  wire->set_dir(std::move(summary.dir));
  wire->set_family(std::move(summary.family));
  wire->set_supported(summary.supported);
  wire->set_reason(std::move(summary.reason));
  for (std::string& layer : summary.layers) wire->add_layers(std::move(layer));
}

}  // namespace

grpc::ServerUnaryReactor* HeadwiseService::ListRepository(grpc::CallbackServerContext* context,
                                                          const v1::ListRepositoryRequest*,
                                                          v1::ListRepositoryResponse* response) {
  auto* call = new UnaryCall(services_, context, "ListRepository", "");
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(""));
  if (status.ok()) {
    status = services_.loader->List([call, response](std::vector<CheckpointSummary> checkpoints) {
      for (CheckpointSummary& checkpoint : checkpoints) {
        EncodeCheckpoint(std::move(checkpoint), response->add_checkpoints());
      }
      call->Reply(absl::OkStatus());
    });
    if (status.ok()) return call;
  }
  call->Reply(status);
  return call;
}

grpc::ServerUnaryReactor* HeadwiseService::ServerInfo(grpc::CallbackServerContext* context,
                                                      const v1::ServerInfoRequest*,
                                                      v1::ServerInfoResponse* response) {
  return AnswerNow(services_, context, "ServerInfo", "", [&] {
    const Engine& engine = *services_.engine;
    response->set_version(kVersion);
    response->set_isa(IsaName());
    for (const KernelPath path : engine.available_kernels()) {
      response->add_kernels(KernelPathName(path));
    }
    response->set_threads(static_cast<uint32_t>(engine.cpu_budget().threads));
    response->set_threads_source(engine.cpu_budget().source);
    response->set_onednn_version(OneDnnVersion());
    for (const FlagLimit& limit : FlagLimits(*services_.options)) {
      v1::Limit* wire = response->add_limits();
      wire->set_flag(limit.flag);
      wire->set_value(limit.value);
      wire->set_unit(limit.unit);
    }
    return absl::OkStatus();
  });
}

}  // namespace headwise
