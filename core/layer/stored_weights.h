// SPDX-License-Identifier: Apache-2.0
// Where the rows of stored weights, fused or not, belong.
#ifndef HEADWISE_CORE_LAYER_STORED_WEIGHTS_H_
#define HEADWISE_CORE_LAYER_STORED_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

// Rows [first, first + rows) of a matrix, one after the other in a stored tensor too.
struct WeightStretch {
  WeightMatrix matrix = WeightMatrix::kQ;
  int64_t first = 0;
  int64_t rows = 0;
};

// A stored weight [rows, depth] (out x in), and its bias [rows] where it has one.
struct StoredWeight {
  TensorRole weight = TensorRole::kQWeight;
  TensorRole bias = TensorRole::kQBias;
  int64_t rows = 0;
  int64_t depth = 0;
  std::vector<WeightStretch> stretches;  // from the first row to the last
};

// The weights that a layer of the resolved `spec` is stored as; W_O comes last. `q_apart`: in the
// fused layout BLOCKS, k and v are in one tensor beside a q of its own.
std::vector<StoredWeight> ListStoredWeights(const LayerSpec& spec, bool q_apart);

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_STORED_WEIGHTS_H_
