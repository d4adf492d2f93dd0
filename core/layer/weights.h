// SPDX-License-Identifier: Apache-2.0
// From stored tensors to plain per-role matrices, whatever their orientation and fused layout.
#ifndef HEADWISE_CORE_LAYER_WEIGHTS_H_
#define HEADWISE_CORE_LAYER_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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
  kPreNorm,
  kPreNormBias,
  kQStatistic,  // rows of q that count in a QK-norm's statistic only
  kKStatistic,
  kQStatisticBias,
  kKStatisticBias,
};

// "Q_WEIGHT", …
const char* TensorRoleName(TensorRole role);

// Fills `out` with the bytes of a tensor from `offset` on. DATA_LOSS if they can't be had.
using ReadTensorBytes = std::function<absl::Status(int64_t offset, absl::Span<char> out)>;

// A stored tensor with its place in the layer. `view` and `read` must outlive the call that they
// are given to.
struct RoleTensor {
  TensorRole role = TensorRole::kQWeight;
  std::string name;  // as stored, for messages and `show`
  TensorView view;   // F32, BF16, F16 or F64; without data where `read` gives it
  // Which head's row of a QK-norm this is, where each head has a tensor of its own [dk]; -1: the
  // tensor is the whole role.
  int64_t head = -1;
  // Gives a stretch of the bytes, each of them once: a layer is packed while its weights are read,
  // so that they are never in memory whole.
  ReadTensorBytes read = nullptr;
};

// Matrices of a layer, out x in.
enum class WeightMatrix : uint8_t {
  kQ,           // [sum dk over H, D]
  kK,           // [sum dk over G, d_memory]
  kV,           // [sum dv over G, d_memory]
  kO,           // [d_out, sum dv over H]
  kQStatistic,  // [q_statistic_rows, D]
  kKStatistic,  // [k_statistic_rows, d_memory]
};

// A layer's parameters that are no matrix, as f32, each role apart, heads in axis order. Biases are
// empty where the layer has none.
struct LayerVectors {
  std::vector<float> bq;  // [sum dk over H]
  std::vector<float> bk;  // [sum dk over G]
  std::vector<float> bv;  // [sum dv over G]
  std::vector<float> bo;  // [d_out]

  std::vector<float> bq_statistic;  // [q_statistic_rows]
  std::vector<float> bk_statistic;  // [k_statistic_rows]

  // QK-norm, by its span: HEAD [dk] for all heads, HEADS and WIDTH [sum dk over H] for q and
  // [sum dk over G] for k.
  std::vector<float> q_norm, k_norm;            // weights
  std::vector<float> q_norm_bias, k_norm_bias;  // the same sizes; empty: none

  std::vector<float> pre_norm, pre_norm_bias;  // [D]; empty: 1 and 0

  std::vector<float> sinks;          // [H] logits, not scaled
  std::vector<float> position_bias;  // T5: [buckets, H]
};

// All of them: row r of `wq` makes column r of q.
struct LayerMatrices : LayerVectors {
  std::vector<float> wq, wk, wv, wo;              // as WeightMatrix says
  std::vector<float> wq_statistic, wk_statistic;  // likewise
};

// What is no matrix among `tensors`, by the resolved `spec`'s fused layout; the weights are checked
// but not read. A QK-norm of the span HEADS may be stored as one tensor, [H, dk] or flat, or as a
// tensor for each head; a bias of it is optional and LAYER_NORM's only. Of a norm before the layer
// both are optional, the bias LAYER_NORM's only too. INVALID_ARGUMENT for a
// missing or doubled role, one that the spec has no use for, a wrong shape (naming tensor, expected
// and actual) or a dtype that is no float; what `read` gives.
absl::StatusOr<LayerVectors> UnpackVectors(const LayerSpec& spec,
                                           const std::vector<RoleTensor>& tensors);

// Takes rows [first, first + count) of a matrix, f32; they last as long as the call.
using TakeRows =
    absl::FunctionRef<void(WeightMatrix matrix, int64_t first, int64_t count, const float* rows)>;

// Hands every row of every matrix over, about 1 MiB at a time, whatever the stored orientation and
// fused layout. Only for what UnpackVectors has found right. What `read` gives.
absl::Status UnpackRows(const LayerSpec& spec, const std::vector<RoleTensor>& tensors,
                        TakeRows take);

// Both.
absl::StatusOr<LayerMatrices> UnpackWeights(const LayerSpec& spec,
                                            const std::vector<RoleTensor>& tensors);

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_WEIGHTS_H_
