// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_LAYER_LOADER_H_
#define HEADWISE_SERVER_LAYER_LOADER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/cancel.h"
#include "core/checkpoint/checkpoint.h"
#include "core/engine.h"
#include "server/layer_archive.h"
#include "server/worker.h"

namespace headwise {

// A layer of a checkpoint under the repository.
struct RepositoryLoad {
  std::string name;
  std::string dir;
  std::string layer;  // "[PART.]I"
  bool replace = false;
  DType dtype = DType::kF32;  // as LoadOptions
};

// A tensor that has been uploaded.
struct UploadedTensor {
  std::string name;
  OwnedTensor tensor;
};

// A layer whose tensors are here: which of them play which role is in `uses`.
struct UploadLoad {
  LoadOptions options;
  LayerSpec spec;
  std::vector<TensorUse> uses;
  std::vector<UploadedTensor> tensors;
};

// Brings layers into the engine on threads of its own, several at a time, so that no gRPC thread
// reads files or packs weights. Thread-safe. Callbacks run on those threads.
class LayerLoader {
 public:
  using Done = std::function<void(absl::StatusOr<LayerInfo>)>;

  // `changed` is called after every change of the set of layers, from any thread. `repository` is
  // resolved here, against the working directory; empty: none. Both objects must outlive the
  // loader.
  static absl::StatusOr<std::unique_ptr<LayerLoader>> Create(Engine* engine,
                                                             const std::string& repository,
                                                             std::function<void()> changed);

  // RESOURCE_EXHAUSTED if too many loads wait, and `done` is not called. A load that is cancelled
  // before its turn leaves no trace.
  absl::Status Load(RepositoryLoad load, std::shared_ptr<CancelToken> cancel, Done done);
  absl::Status Load(UploadLoad load, std::shared_ptr<CancelToken> cancel, Done done);
  absl::Status List(std::function<void(std::vector<CheckpointSummary>)> done);

  // At once, on the calling thread, for what is loaded before the server is ready.
  absl::StatusOr<LayerInfo> LoadNow(const RepositoryLoad& load);
  absl::StatusOr<LayerInfo> LoadNow(UploadLoad load);

  absl::StatusOr<LayerInfo> Unload(absl::string_view name);

  // What a loaded layer was made from. NOT_FOUND.
  absl::StatusOr<std::shared_ptr<const StoredLayer>> FindStored(absl::string_view name) const;
  // The bytes of one part of it; for Run. DATA_LOSS if the checkpoint has changed since.
  absl::StatusOr<OwnedTensor> ReadStored(const StoredLayer& layer, const StoredPart& part) const;
  // Runs `job` on one of the loader's threads. RESOURCE_EXHAUSTED as Load.
  absl::Status Run(std::function<void()> job) { return Post(std::move(job)); }

  bool HasFolder(const std::string& dir) const;

 private:
  LayerLoader(Engine* engine, std::string root, std::function<void()> changed);
  template <typename LoadType>
  absl::Status Enqueue(LoadType load, std::shared_ptr<CancelToken> cancel, Done done);
  absl::Status Post(std::function<void()> job);
  absl::StatusOr<LayerInfo> Bring(const LoadOptions& options, const LayerSpec& spec,
                                  const std::vector<RoleTensor>& tensors);

  void Archive(const LayerInfo& info, std::vector<TensorUse> uses, StoredLayer layer);

  Engine* const engine_;
  const std::string root_;  // canonical; empty: no repository
  const std::function<void()> changed_;
  LayerArchive archive_;
  Worker worker_;  // last: its threads use the rest
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_LAYER_LOADER_H_
