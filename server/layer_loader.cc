// SPDX-License-Identifier: Apache-2.0
#include "server/layer_loader.h"

#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "server/free_memory.h"

namespace headwise {
namespace {

constexpr size_t kMaxWaitingLoads = 256;

absl::StatusOr<std::string> ResolveRepository(const std::string& repository) {
  if (repository.empty()) return std::string();
  std::error_code error;
  const std::filesystem::path root = std::filesystem::canonical(repository, error);
  if (error || !std::filesystem::is_directory(root, error)) {
    return absl::NotFoundError(
        absl::StrCat("repository: must be a folder that exists; was ", repository));
  }
  return root.string();
}

}  // namespace

LayerLoader::LayerLoader(Engine* engine, std::string root, std::function<void()> changed)
    : engine_(engine),
      root_(std::move(root)),
      changed_(std::move(changed)),
      worker_(kMaxWaitingLoads) {}

absl::StatusOr<std::unique_ptr<LayerLoader>> LayerLoader::Create(Engine* engine,
                                                                 const std::string& repository,
                                                                 std::function<void()> changed) {
  absl::StatusOr<std::string> root = ResolveRepository(repository);
  if (!root.ok()) return root.status();
  return std::unique_ptr<LayerLoader>(
      new LayerLoader(engine, *std::move(root), std::move(changed)));
}

absl::StatusOr<LayerInfo> LayerLoader::Bring(const LoadOptions& options, const LayerSpec& spec,
                                             const std::vector<RoleTensor>& tensors) {
  absl::StatusOr<LayerInfo> info = engine_->LoadLayer(options, spec, tensors);
  if (!info.ok()) return info;
  changed_();
  const LayerSource& source = info->source;
  LOG(INFO) << "loaded layer " << info->name << " version " << info->version << " ("
            << source.family
            << (source.dir.empty() ? "" : absl::StrCat(", ", source.dir, " layer ", source.layer))
            << "): " << info->weight_bytes << " bytes, kernel " << info->kernel;
  return info;
}

absl::StatusOr<LayerInfo> LayerLoader::LoadNow(const RepositoryLoad& load) {
  if (root_.empty()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint: must be under --repository, which is not set; was ", load.dir));
  }
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(root_, load.dir);
  if (!checkpoint.ok()) return checkpoint.status();
  absl::StatusOr<LayerPlan> plan =
      PlanLayer((*checkpoint)->config_json(), load.layer, (*checkpoint)->tensors());
  if (!plan.ok()) return plan.status();

  std::vector<OwnedTensor> stored;
  for (const TensorUse& use : plan->tensors) {
    absl::StatusOr<OwnedTensor> tensor = (*checkpoint)->Read(use.name);
    if (!tensor.ok()) return tensor.status();
    stored.push_back(*std::move(tensor));
  }
  std::vector<RoleTensor> tensors;
  for (size_t i = 0; i < stored.size(); ++i) {
    tensors.push_back({plan->tensors[i].role, plan->tensors[i].name, stored[i].view()});
  }
  plan->source.dir = load.dir;
  return Bring({load.name, load.replace, plan->source}, plan->spec, tensors);
}

absl::StatusOr<LayerInfo> LayerLoader::LoadNow(const UploadLoad& load) {
  std::map<absl::string_view, const OwnedTensor*> by_name;
  for (const UploadedTensor& uploaded : load.tensors) by_name[uploaded.name] = &uploaded.tensor;
  std::vector<RoleTensor> tensors;
  for (const TensorUse& use : load.uses) {
    const auto found = by_name.find(use.name);
    if (found == by_name.end()) {
      return absl::NotFoundError(absl::StrCat("tensors: must hold the layer's ",
                                              TensorRoleName(use.role), ", ", use.name, "; was ",
                                              load.tensors.size(), " others"));
    }
    tensors.push_back({use.role, use.name, found->second->view()});
  }
  return Bring(load.options, load.spec, tensors);
}

absl::Status LayerLoader::Post(std::function<void()> job) {
  if (worker_.Post(std::move(job))) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("loads: must be at most ", kMaxWaitingLoads,
                                                   " waiting, retry later; was ",
                                                   kMaxWaitingLoads + 1));
}

template <typename LoadType>
absl::Status LayerLoader::Enqueue(LoadType load, std::shared_ptr<CancelToken> cancel, Done done) {
  // Shared, because std::function wants what it holds to be copyable and the load is large.
  auto held = std::make_shared<LoadType>(std::move(load));
  return Post([this, held, cancel = std::move(cancel), done = std::move(done)] {
    if (cancel != nullptr && cancel->cancelled()) {
      done(absl::CancelledError("load: must not be cancelled before its turn; was cancelled"));
    } else {
      done(LoadNow(*held));
    }
  });
}

absl::Status LayerLoader::Load(RepositoryLoad load, std::shared_ptr<CancelToken> cancel,
                               Done done) {
  return Enqueue(std::move(load), std::move(cancel), std::move(done));
}

absl::Status LayerLoader::Load(UploadLoad load, std::shared_ptr<CancelToken> cancel, Done done) {
  return Enqueue(std::move(load), std::move(cancel), std::move(done));
}

absl::Status LayerLoader::List(std::function<void(std::vector<CheckpointSummary>)> done) {
  return Post([this, done = std::move(done)] {
    done(root_.empty() ? std::vector<CheckpointSummary>() : ListRepository(root_));
  });
}

absl::StatusOr<LayerInfo> LayerLoader::Unload(absl::string_view name) {
  absl::StatusOr<LayerInfo> info = engine_->UnloadLayer(name);
  if (!info.ok()) return info;
  changed_();
  LOG(INFO) << "unloaded layer " << info->name << " version " << info->version;
  ReleaseFreeMemory();
  return info;
}

bool LayerLoader::HasFolder(const std::string& dir) const {
  std::error_code error;
  return !root_.empty() && std::filesystem::is_directory(std::filesystem::path(root_) / dir, error);
}

}  // namespace headwise
