// SPDX-License-Identifier: Apache-2.0
// Products of attention that the microkernel, made for many rows and columns, is slow at: a single
// query row, as a step of decoding has (bound by the bytes of k and v: plain loops read them as
// fast as memory gives them, the microkernel half as fast), and a few features of v beyond whole
// vectors. Vectorised for the CPU found at run time (Highway). F32 and BF16.
#ifndef HEADWISE_CORE_KERNEL_THIN_PRODUCTS_H_
#define HEADWISE_CORE_KERNEL_THIN_PRODUCTS_H_

#include <cstdint>

#include "core/kernel/tile_kernel.h"

namespace headwise {

// scores [columns] = q [dk] times columns of a panel whose rows are `panel` columns, g rows
// interleaved (see Interleave). columns: a multiple of kKeyStep.
void ScoreRow(TileType type, const void* q, const void* kt, int64_t dk, int64_t panel,
              int64_t columns, float* scores);

// output [features] += weights [keys] times v [keys, features], g rows interleaved; keys: a
// multiple of g.
void AddWeightedRows(TileType type, const void* weights, const void* v, int64_t keys,
                     int64_t features, float* output);

// Features of v that lie apart: [features, keys], rows `stride` numbers from one to the next.
struct FeatureRows {
  const void* data = nullptr;
  int64_t features = 0;
  int64_t stride = 0;
};

// output [rows, features] += weights [rows, keys] times v, of both of which columns [first, last)
// count, multiples of kKeyStep; rows of weights are kScoreStride apart, those of the output
// `stride`. An element's sum is taken key by key in each lane, keys beside [first, last) being
// zeros, and then over the lanes: it has the same bits for all rows, features and ranges that hold
// the same weights.
void AddFeaturesApart(TileType type, const void* weights, int64_t rows, const FeatureRows& v,
                      int64_t first, int64_t last, float* output, int64_t stride);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_THIN_PRODUCTS_H_
