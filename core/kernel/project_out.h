// SPDX-License-Identifier: Apache-2.0
// Stage "project out": y = z W_O + b_o, and the contributions c_r = z_r W_O^(r) that add up to it.
#ifndef HEADWISE_CORE_KERNEL_PROJECT_OUT_H_
#define HEADWISE_CORE_KERNEL_PROJECT_OUT_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/kernel/pass_data.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// Where row `row` of the result begins, or null if nobody wants it.
using RowSink = absl::FunctionRef<float*(int64_t row)>;

// y for rows [row, row + rows) of z [*, sum dv], column blocks [first_block, last_block). Any rows;
// bits depend on the row alone. `scale_z`: rows that int8 takes its scales from (null: z itself).
// Thread-safe for different rows or blocks.
void RunProjectOut(const AttentionLayer& layer, const float* z, const float* scale_z, int64_t row,
                   int64_t rows, int64_t first_block, int64_t last_block, RowSink sink,
                   WorkerScratch* scratch);

// c_r of one head and column block for rows that wo().MakeRows made of z, into `out` with
// tile_stride() floats a row. b_o is no part of it.
void RunContribution(const AttentionLayer& layer, int64_t head, size_t block, const TileRows& z,
                     float* out);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_PROJECT_OUT_H_
