// SPDX-License-Identifier: Apache-2.0
// Stage "project": q, k and v of a block of rows, each written the way attention reads it.
#ifndef HEADWISE_CORE_KERNEL_PROJECT_H_
#define HEADWISE_CORE_KERNEL_PROJECT_H_

#include <cstdint>

#include "core/kernel/pass_data.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// Part of a projection: rows [row, row + rows) times column blocks [first_block, last_block).
struct ProjectTask {
  bool keys_and_values = false;  // wkv over the key rows, else wq over the query rows
  int64_t row = 0;
  int64_t rows = 0;
  int64_t first_block = 0;
  int64_t last_block = 0;
};

// While a tile of results is in the first-level cache it gets its bias and RoPE and is stored in
// its final place: q a head at a time, k transposed, v packed. Nothing of q, k, v is read back
// before attention, which saves a pass over 3 N D floats. Thread-safe for tasks that don't overlap.
void RunProject(const AttentionLayer& layer, const ProjectTask& task, PassData* pass,
                WorkerScratch* scratch);

// Rows of one sequence and one head, ready to be stored: bias and RoPE are in.
struct HeadRows {
  const SequencePlan* sequence = nullptr;
  int64_t first = 0;  // index of the first row within the sequence
  int64_t rows = 0;
  const float* data = nullptr;  // [rows, head width]
  int64_t stride = 0;           // between rows of `data`
};

// Where attention reads them (see PassData). `bias` [dv] is added to v on its way, or null.
void StoreQueries(const AttentionLayer& layer, int64_t head, const HeadRows& rows, PassData* pass);
void StoreKeys(const AttentionLayer& layer, int64_t group, const HeadRows& rows, PassData* pass);
void StoreValues(const AttentionLayer& layer, int64_t group, const float* bias,
                 const HeadRows& rows, PassData* pass);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_PROJECT_H_
