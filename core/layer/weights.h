// SPDX-License-Identifier: Apache-2.0
// From stored tensors to plain per-role matrices, whatever their orientation and fused layout.
#ifndef HEADWISE_CORE_LAYER_WEIGHTS_H_
#define HEADWISE_CORE_LAYER_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/tensor.h"
#include "core/layer/spec.h"

namespace headwise {

enum class TensorRole : uint8_t {
  kQWeight,
  kKWeight,
  kVWeight,
  kQkvWeight,
  kOWeight,
  kQBias,
  kKBias,
  kVBias,
  kQkvBias,
  kOBias,
  kQNorm,
  kKNorm,
  kQNormBias,
  kKNormBias,
  kSinks,
  kPositionBias,
  kKvWeight,  // k and v in one, beside a q of its own
  kKvBias,
};

// "Q_WEIGHT", …
const char* TensorRoleName(TensorRole role);

// A stored tensor with its place in the layer. `view` must outlive the call that it is given to.
struct RoleTensor {
  TensorRole role = TensorRole::kQWeight;
  std::string name;  // as stored, for messages and `show`
  TensorView view;   // F32, BF16, F16 or F64
  // Which head's row of a QK-norm this is, where each head has a tensor of its own [dk]; -1: the
  // tensor is the whole role.
  int64_t head = -1;
};

// The layer's parameters as f32, each role apart, heads in axis order, out x in:
// row r of `wq` makes column r of q. Biases are empty where the layer has none.
struct LayerMatrices {
  std::vector<float> wq;  // [sum dk over H, D]
  std::vector<float> wk;  // [sum dk over G, d_memory]
  std::vector<float> wv;  // [sum dv over G, d_memory]
  std::vector<float> wo;  // [d_out, sum dv over H]
  std::vector<float> bq;  // [sum dk over H]
  std::vector<float> bk;  // [sum dk over G]
  std::vector<float> bv;  // [sum dv over G]
  std::vector<float> bo;  // [d_out]

  // QK-norm, by its span: HEAD [dk] for all heads, HEADS and WIDTH [sum dk over H] for q and
  // [sum dk over G] for k.
  std::vector<float> q_norm, k_norm;            // weights
  std::vector<float> q_norm_bias, k_norm_bias;  // the same sizes; empty: none

  std::vector<float> sinks;          // [H] logits, not scaled
  std::vector<float> position_bias;  // T5: [buckets, H]
};

// Unpacks `tensors` by the resolved `spec`'s orientation and fused layout. A QK-norm of the span
// HEADS may be stored as one tensor, [H, dk] or flat, or as a tensor for each head; a bias of it is
// optional and LAYER_NORM's only. INVALID_ARGUMENT for a missing or doubled role, one that the spec
// has no use for, a wrong shape (naming tensor, expected and actual) or a dtype that is no float.
absl::StatusOr<LayerMatrices> UnpackWeights(const LayerSpec& spec,
                                            const std::vector<RoleTensor>& tensors);

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_WEIGHTS_H_
