// SPDX-License-Identifier: Apache-2.0
// Sums of products between head contributions: what every zero and scale ablation follows from.
#ifndef HEADWISE_CORE_KERNEL_GRAM_H_
#define HEADWISE_CORE_KERNEL_GRAM_H_

#include <cstdint>
#include <vector>

#include "core/kernel/pass_data.h"
#include "core/layer/attention_layer.h"

namespace headwise {

inline constexpr int64_t kGramTokens = 32;

// Further rows of the matrix: what a head loses where its z is replaced.
struct GramDeltas {
  struct Row {
    int64_t matrix = -1;  // in `differences`; -1: zeros here
    int64_t head = 0;
  };
  std::vector<const float*> differences;  // z - z', [tokens, sum dv] each
  std::vector<Row> rows;
};

// Adds, over tokens [0, tokens) and column blocks [first_block, last_block), the products of the
// H + 1 rows c_0 … c_{H-1}, y to `gram` [H + 1, H + 1], upper triangle. y is the sum of the
// contributions and b_o, so that no output projection is needed. `z` [tokens, sum dv] begins at the
// first token; tokens <= kGramTokens. `deltas` (null: none) follow y: difference_r W_O^(r).
// Contributions live in a [rows, kGramTokens, tile_stride] buffer only. f32 products, f64 sums
// every 16 tokens of a block. Thread-safe for different `gram`.
void RunGram(const AttentionLayer& layer, const float* z, int64_t tokens, int64_t first_block,
             int64_t last_block, const GramDeltas* deltas, double* gram, WorkerScratch* scratch);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_GRAM_H_
