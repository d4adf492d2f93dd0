// SPDX-License-Identifier: Apache-2.0
// Finds one attention layer in a Hugging Face checkpoint.
#ifndef HEADWISE_CORE_CHECKPOINT_CHECKPOINT_H_
#define HEADWISE_CORE_CHECKPOINT_CHECKPOINT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/tensor.h"
#include "core/layer/layer_info.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

// A tensor that a checkpoint holds, without its bytes. `dtype` is the stored spelling and may be
// one that we don't know (F8_E4M3): only the layer's own tensors need a known one.
struct StoredTensorInfo {
  std::string name;
  std::string dtype;
  Shape shape;
  // Why the tensor can't be read (its shard is missing or malformed); dtype and shape are unknown
  // then. Empty for a sound one. Only a layer that needs the tensor fails, with this text.
  std::string problem = {};
};

// One tensor of the layer: which stored tensor plays which role.
struct TensorUse {
  TensorRole role = TensorRole::kQWeight;
  std::string name;
  int64_t head = -1;  // as RoleTensor::head
};

// A layer found in a checkpoint: its settings, and which stored tensors it is made of.
struct LayerPlan {
  LayerSpec spec;
  LayerSource source;  // family, prefix, layer, x_enters, y_leaves; dir is left to the caller
  std::vector<TensorUse> tensors;
};

// Reads `config_json` (Infinity and NaN allowed), picks the family by model_type, finds the names
// of layer `layer` ("[PART.]I") among `stored` and checks their shapes. The plan's spec is
// resolved. Pure: reads no file. NOT_FOUND (layer, part or tensor, with the names looked for),
// UNIMPLEMENTED (model_type, setting, part, dtype or an unknown tensor of the block, by name),
// INVALID_ARGUMENT (malformed `layer`, and what ResolveSpec refuses), DATA_LOSS (config.json that
// is no JSON or contradicts the tensors, several prefixes, a tensor with a `problem`).
absl::StatusOr<LayerPlan> PlanLayer(absl::string_view config_json, absl::string_view layer,
                                    const std::vector<StoredTensorInfo>& stored);

// Layers ("[PART.]I") of the checkpoint that PlanLayer would find, in order. Where there is none,
// the error that PlanLayer gives for the first; NOT_FOUND where no name looks like one.
absl::StatusOr<std::vector<std::string>> ListLayerIds(absl::string_view config_json,
                                                      const std::vector<StoredTensorInfo>& stored);

// A checkpoint folder: config.json, and model.safetensors.index.json or else model.safetensors.
// Never opens another file, nor one outside `root`. Thread-safe.
class Checkpoint {
 public:
  // `dir` is relative to `root` ("." is `root` itself); empty components, "..", absolute paths, NUL
  // and links that leave `root`: INVALID_ARGUMENT, before anything outside is touched. NOT_FOUND:
  // no such folder or no config.json or no weights. DATA_LOSS: anything malformed, an index or a
  // file's link that leaves the folder or `root` too. A shard that is missing or malformed is no
  // error here: its tensors carry the problem. Reads headers only.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(absl::string_view root,
                                                          absl::string_view dir);
  virtual ~Checkpoint() = default;

  virtual const std::string& config_json() const = 0;
  virtual const std::vector<StoredTensorInfo>& tensors() const = 0;

  // The bytes of one tensor. NOT_FOUND; DATA_LOSS if its file is gone, cut or changed;
  // UNIMPLEMENTED for a dtype that we don't know, by name.
  virtual absl::StatusOr<OwnedTensor> Read(absl::string_view name) const = 0;

  // A stretch of one tensor's bytes from `offset` on; reads no others. INVALID_ARGUMENT if it
  // doesn't lie inside the tensor; NOT_FOUND and DATA_LOSS as Read.
  virtual absl::Status ReadPart(absl::string_view name, int64_t offset,
                                absl::Span<char> out) const = 0;
};

// What a folder of the repository holds, for ListRepository.
struct CheckpointSummary {
  std::string dir;     // relative to the root, "/" between components
  std::string family;  // model_type; empty if config.json is unreadable
  bool supported = false;
  std::string reason;  // why not
  std::vector<std::string> layers;
};

// All folders under `root` (at most 4 levels deep, 10,000 folders) that hold a config.json, by
// name.
std::vector<CheckpointSummary> ListRepository(const std::string& root);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_CHECKPOINT_H_
