// SPDX-License-Identifier: Apache-2.0
// Layers made from other layers: without some heads, in another order, with gates folded in, with
// separate or fused projections. All functions are pure and thread-safe.
#ifndef HEADWISE_CORE_LAYER_DERIVE_H_
#define HEADWISE_CORE_LAYER_DERIVE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/tensor.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

// A layer's settings (resolved) and numbers.
struct LayerParts {
  LayerSpec spec;
  LayerMatrices matrices;
};

// Without the heads `ids`. Heads that stay keep their ids, the map to key/value heads is explicit,
// and a key/value head goes when none uses it; biases, norm rows, sinks, slopes, position-bias
// columns and gates move with their head; a norm before the layer stays. Under a norm over the
// whole width the q and k rows that go are kept for its statistic. INVALID_ARGUMENT: an id that the
// layer doesn't have, none left.
absl::StatusOr<LayerParts> PruneHeads(const LayerParts& layer, const std::vector<int64_t>& ids);

// With its heads in the order `ids`, across groups too; key/value heads stay where they are. The
// output is the same within rounding. INVALID_ARGUMENT unless every head is named once.
absl::StatusOr<LayerParts> PermuteHeads(const LayerParts& layer, const std::vector<int64_t>& ids);

// Multiplies W_O's columns of each named head by its gate, and adds `output_bias` [d_out] (empty:
// nothing) to b_o. INVALID_ARGUMENT: an unknown or doubled id, a gate that isn't finite, a bias of
// another length.
absl::StatusOr<LayerParts> FoldGates(LayerParts layer,
                                     const std::vector<std::pair<int64_t, double>>& gates,
                                     absl::Span<const float> output_bias);

// The same with the layer's own gates, which it no longer has then. A gate of 0 multiplies from now
// on: NaN and infinity in z are no longer left out.
LayerParts FoldOwnGates(LayerParts layer);

struct DerivedTensor {
  TensorRole role = TensorRole::kQWeight;
  std::string name;
  OwnedTensor tensor;  // F32, out x in
};

struct DerivedLayer {
  LayerSpec spec;
  std::vector<DerivedTensor> tensors;
};

// The layer as tensors for UnpackWeights, q, k and v each on their own or, with `fused`, in one: [q
// of all heads; k of all; v of all]. INVALID_ARGUMENT: `fused` where k and v are computed from
// another width than q.
absl::StatusOr<DerivedLayer> ToTensors(const LayerParts& layer, bool fused);

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_DERIVE_H_
