// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/oip_service.h"

namespace headwise {
namespace {

using Parameters = google::protobuf::Map<std::string, inference::ModelRepositoryParameter>;

// A layer of the repository that isn't loaded goes by "DIR.LAYER": "minilm.3".
std::string ModelNameOf(const std::string& dir, const std::string& layer) {
  return absl::StrCat(dir, ".", layer);
}

std::string TextOf(const Parameters& parameters, const char* name) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? "" : found->second.string_param();
}

absl::StatusOr<DType> DTypeOf(const Parameters& parameters) {
  const std::string text = absl::AsciiStrToLower(TextOf(parameters, "dtype"));
  if (text.empty() || text == "f32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  if (text == "int8") return DType::kI8;
  return absl::InvalidArgumentError(
      absl::StrCat("parameters.dtype: must be f32, bf16 or int8; was ", text));
}

// The checkpoint's layer that a name stands for.
std::optional<RepositoryLoad> Resolve(const std::vector<CheckpointSummary>& checkpoints,
                                      const std::string& name, DType dtype) {
  for (const CheckpointSummary& checkpoint : checkpoints) {
    for (const std::string& layer : checkpoint.layers) {
      if (ModelNameOf(checkpoint.dir, layer) != name) continue;
      return RepositoryLoad{name, checkpoint.dir, layer, /*replace=*/true, dtype};
    }
  }
  return std::nullopt;
}

}  // namespace

grpc::ServerUnaryReactor* OipService::RepositoryIndex(
    grpc::CallbackServerContext* context, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  auto* call = new UnaryCall(services_, context, "RepositoryIndex", "");
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(""));
  const auto add = [response](const std::string& name, const std::string& version,
                              const char* state, const std::string& reason) {
    inference::RepositoryIndexResponse::ModelIndex* model = response->add_models();
    model->set_name(name);
    model->set_version(version);
    model->set_state(state);
    model->set_reason(reason);
  };
  if (status.ok()) {
    status = services_.loader->List(
        [this, call, request, add](const std::vector<CheckpointSummary>& checkpoints) {
          std::set<std::string> loaded;
          for (const LayerInfo& info : services_.engine->ListLayers()) {
            add(info.name, absl::StrCat(info.version), "READY", "");
            loaded.insert(info.name);
          }
          for (const CheckpointSummary& checkpoint : checkpoints) {
            for (const std::string& layer : checkpoint.layers) {
              const std::string name = ModelNameOf(checkpoint.dir, layer);
              // A folder within a folder has no model name: load it by its parameters.
              if (request->ready() || loaded.contains(name) || absl::StrContains(name, '/'))
                continue;
              add(name, "", "UNAVAILABLE", checkpoint.supported ? "not loaded" : checkpoint.reason);
            }
          }
          call->Reply(absl::OkStatus());
        });
    if (status.ok()) return call;
  }
  call->Reply(status);
  return call;
}

grpc::ServerUnaryReactor* OipService::RepositoryModelLoad(
    grpc::CallbackServerContext* context, const inference::RepositoryModelLoadRequest* request,
    inference::RepositoryModelLoadResponse*) {
  auto* call = new UnaryCall(services_, context, "RepositoryModelLoad", "");
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(""));
  const absl::StatusOr<DType> dtype = DTypeOf(request->parameters());
  status.Update(dtype.status());
  const auto load = [this, call](const RepositoryLoad& what) {
    return services_.loader->Load(
        what, call->cancel_token(),
        [call](const absl::StatusOr<LayerInfo>& info) { call->Reply(info.status()); });
  };
  const std::string& name = request->model_name();
  const std::string checkpoint = TextOf(request->parameters(), "checkpoint");
  if (status.ok() && !checkpoint.empty()) {
    status = load(RepositoryLoad{name, checkpoint, TextOf(request->parameters(), "layer"),
                                 /*replace=*/true, *dtype});
  } else if (status.ok()) {
    status = services_.loader->List([this, call, load, name, dtype = *dtype](
                                        const std::vector<CheckpointSummary>& checkpoints) {
      const std::optional<RepositoryLoad> found = Resolve(checkpoints, name, dtype);
      absl::Status result;
      if (found.has_value()) {
        result = load(*found);
        if (result.ok()) return;  // answered when it is loaded
      } else if (!services_.engine->GetLayer(name).ok()) {
        result = absl::NotFoundError(absl::StrCat(
            "model_name: must be CHECKPOINT.LAYER of the repository, like minilm.3, or come with "
            "the parameters checkpoint and layer; was ",
            name));
      }
      call->Reply(result);
    });
  }
  if (!status.ok()) call->Reply(status);
  return call;
}

grpc::ServerUnaryReactor* OipService::RepositoryModelUnload(
    grpc::CallbackServerContext* context, const inference::RepositoryModelUnloadRequest* request,
    inference::RepositoryModelUnloadResponse*) {
  return AnswerNow(services_, context, "RepositoryModelUnload", "", [&] {
    const absl::Status status = services_.loader->Unload(request->model_name()).status();
    if (status.ok()) statistics_.Forget(request->model_name());
    return status;
  });
}

}  // namespace headwise
