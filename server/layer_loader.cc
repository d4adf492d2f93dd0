// SPDX-License-Identifier: Apache-2.0
#include "server/layer_loader.h"

#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "core/format/file.h"
#include "server/free_memory.h"

namespace headwise {
namespace {

constexpr size_t kMaxWaitingLoads = 256;

// Loads at a time: one that waits for a disk leaves the CPU to the others. The engine's budget is
// taken before a layer is read.
constexpr int kLoadThreads = 4;

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

// The tensors of a checkpoint that `uses` names, read while the layer is packed; `parts` says of
// each what was read of it by then. Both must outlive the tensors.
absl::StatusOr<std::vector<RoleTensor>> ReadOnDemand(const Checkpoint& checkpoint,
                                                     const std::vector<TensorUse>& uses,
                                                     std::vector<StoredPart>* parts) {
  std::map<absl::string_view, const StoredTensorInfo*> by_name;
  for (const StoredTensorInfo& info : checkpoint.tensors()) by_name[info.name] = &info;
  parts->resize(uses.size());
  std::vector<RoleTensor> tensors;
  for (size_t i = 0; i < uses.size(); ++i) {
    const StoredTensorInfo& info = *by_name.at(uses[i].name);
    const std::optional<DType> dtype = DTypeFromName(info.dtype);
    if (!dtype.has_value()) {
      return absl::UnimplementedError(absl::StrCat("tensor \"", Printable(info.name), "\": dtype ",
                                                   Printable(info.dtype), " isn't supported"));
    }
    StoredPart* const part = &(*parts)[i];
    *part = {info.name, *dtype, info.shape, 0, std::nullopt};
    tensors.push_back({uses[i].role, uses[i].name, {*dtype, info.shape, nullptr}, uses[i].head});
    const size_t bytes = tensors.back().view.bytes();
    const auto read = [&checkpoint, part, bytes](int64_t offset, absl::Span<char> out) {
      absl::Status status = checkpoint.ReadPart(part->name, offset, out);
      if (!status.ok()) return status;
      const size_t end = static_cast<size_t>(offset) + out.size();
      part->crc32c = AddToCrc32c(part->crc32c, out, bytes - end);
      return status;
    };
    tensors.back().read = read;
  }
  return tensors;
}

}  // namespace

LayerLoader::LayerLoader(Engine* engine, std::string root, std::function<void()> changed)
    : engine_(engine),
      root_(std::move(root)),
      changed_(std::move(changed)),
      worker_(kMaxWaitingLoads, kLoadThreads) {}

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
            << "): " << DTypeName(info->dtype) << ", " << info->weight_bytes << " bytes, kernel "
            << info->kernel;
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

  StoredLayer layer;
  absl::StatusOr<std::vector<RoleTensor>> tensors =
      ReadOnDemand(**checkpoint, plan->tensors, &layer.parts);
  if (!tensors.ok()) return tensors.status();
  plan->source.dir = load.dir;
  absl::StatusOr<LayerInfo> info =
      Bring({load.name, load.replace, load.dtype, plan->source}, plan->spec, *tensors);
  if (info.ok()) Archive(*info, std::move(plan->tensors), std::move(layer));
  return info;
}

absl::StatusOr<LayerInfo> LayerLoader::LoadNow(UploadLoad load) {
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
    tensors.push_back({use.role, use.name, found->second->view(), use.head});
  }
  // The archive keeps them, so that the layer can be saved bit for bit.
  for (const UploadedTensor& uploaded : load.tensors) {
    load.options.kept_bytes += static_cast<int64_t>(uploaded.tensor.data.size());
  }
  absl::StatusOr<LayerInfo> info = Bring(load.options, load.spec, tensors);
  if (!info.ok()) return info;
  StoredLayer layer;
  for (UploadedTensor& uploaded : load.tensors) {
    layer.parts.push_back(DescribePart(std::move(uploaded.name), uploaded.tensor));
    layer.parts.back().kept = std::move(uploaded.tensor);
  }
  Archive(*info, std::move(load.uses), std::move(layer));
  return info;
}

void LayerLoader::Archive(const LayerInfo& info, std::vector<TensorUse> uses, StoredLayer layer) {
  layer.spec = info.spec;
  layer.source = info.source;
  layer.uses = std::move(uses);
  archive_.Put(info.name, info.version, std::move(layer));
  // Unloaded meanwhile: nobody else would remove it.
  if (!engine_->GetLayer(info.name).ok()) archive_.Remove(info.name);
}

absl::StatusOr<std::shared_ptr<const StoredLayer>> LayerLoader::FindStored(
    absl::string_view name) const {
  const absl::StatusOr<LayerInfo> info = engine_->GetLayer(name);
  if (!info.ok()) return info.status();
  std::shared_ptr<const StoredLayer> layer = archive_.Find(name, info->version);
  if (layer != nullptr) return layer;
  return absl::NotFoundError(
      absl::StrCat("name: must be a layer that can be saved; was ", name, ", being replaced"));
}

absl::StatusOr<OwnedTensor> LayerLoader::ReadStored(const StoredLayer& layer,
                                                    const StoredPart& part) const {
  if (part.kept.has_value()) return *part.kept;
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
      Checkpoint::Open(root_, layer.source.dir);
  if (!checkpoint.ok()) return absl::DataLossError(checkpoint.status().message());
  absl::StatusOr<OwnedTensor> tensor = (*checkpoint)->Read(part.name);
  if (!tensor.ok()) return absl::DataLossError(tensor.status().message());
  const StoredPart now = DescribePart(part.name, *tensor);
  if (now.dtype == part.dtype && now.shape == part.shape && now.crc32c == part.crc32c) {
    return tensor;
  }
  return absl::DataLossError(absl::StrCat("tensor \"", part.name,
                                          "\": must be as it was when it was loaded; was changed"));
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
      done(LoadNow(std::move(*held)));
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
  archive_.Remove(name);
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
