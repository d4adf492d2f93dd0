// SPDX-License-Identifier: Apache-2.0
// An attention block's tensors among those of a checkpoint. Pure; thread-safe.
#ifndef HEADWISE_CORE_CHECKPOINT_BLOCK_H_
#define HEADWISE_CORE_CHECKPOINT_BLOCK_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/family.h"

namespace headwise {

using StoredIndex = std::map<absl::string_view, const StoredTensorInfo*>;

StoredIndex IndexByName(const std::vector<StoredTensorInfo>& stored);

// "encoder.layer.3.attention".
std::string BlockName(const BlockLayout& block, int64_t index);

// Prefixes ("" or ending with a dot) of each block of this layout that some name belongs to.
std::map<int64_t, std::set<std::string>> FindBlocks(const BlockLayout& block,
                                                    const StoredIndex& stored);

// Which tensors a layer has, by config.json.
struct BlockTensors {
  const Family* family = nullptr;
  const BlockLayout* block = nullptr;
  bool biases = false;
  bool norms = false;
  int64_t heads = 0;  // for tensors that each head has of its own; 0: none
  int64_t kv_heads = 0;
};

// The names of them, of the block `index` under `prefix`.
std::vector<TensorUse> TensorNames(const BlockTensors& tensors, absl::string_view prefix,
                                   int64_t index);

// The tensors of the norm before a block that starts with `block_start` ("bert.encoder.layer.3").
// None where they aren't all there to be read: the layer computes the same without them.
std::vector<TensorUse> PreNormTensors(const PreNormRule& rule, absl::string_view block_start,
                                      const StoredIndex& stored);

// A tensor's dtype and shape against the spec. DATA_LOSS, UNIMPLEMENTED (dtype).
absl::Status CheckTensor(const LayerSpec& spec, const TensorUse& use,
                         const StoredTensorInfo& tensor);

// A tensor of the block that is neither used nor known to be no part of the layer would change what
// the layer computes: UNIMPLEMENTED; DATA_LOSS for one that config.json says is not there.
absl::Status CheckStrays(const BlockTensors& tensors, const StoredIndex& stored,
                         absl::string_view block_name, const std::vector<TensorUse>& used);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_BLOCK_H_
