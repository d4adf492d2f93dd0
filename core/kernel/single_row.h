// SPDX-License-Identifier: Apache-2.0
// The two products of attention for a single query row, as a step of decoding has: bound by the
// bytes of k and v. Plain loops read them as fast as memory gives them; the microkernel, made for
// many rows, reaches half of that. Vectorised for the CPU found at run time (Highway).
#ifndef HEADWISE_CORE_KERNEL_SINGLE_ROW_H_
#define HEADWISE_CORE_KERNEL_SINGLE_ROW_H_

#include <cstdint>

#include "core/kernel/tile_kernel.h"

namespace headwise {

// scores [columns] = q [dk] times columns of a panel whose rows are `panel` columns, g rows
// interleaved (see Interleave). columns: a multiple of kKeyStep. F32 and BF16.
void ScoreRow(TileType type, const void* q, const void* kt, int64_t dk, int64_t panel,
              int64_t columns, float* scores);

// output [features] += weights [keys] times v [keys, features], g rows interleaved; keys: a
// multiple of g.
void AddWeightedRows(TileType type, const void* weights, const void* v, int64_t keys,
                     int64_t features, float* output);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_SINGLE_ROW_H_
