// SPDX-License-Identifier: Apache-2.0
// Stage "project": q, k and v of a block of rows, each written the way attention reads it.
#ifndef HEADWISE_CORE_KERNEL_PROJECT_H_
#define HEADWISE_CORE_KERNEL_PROJECT_H_

#include <cstdint>

#include "core/kernel/pass_data.h"
#include "core/kernel/vector_ops.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// Part of a projection: rows [row, row + rows) times column blocks [first_block, last_block), which
// are numbered through, those of wq and then those of wkv. wkv multiplies rows of the memory: a
// task has blocks of both only where that is x itself.
struct ProjectTask {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t first_block = 0;
  int64_t last_block = 0;
};

// While a tile of results is in the first-level cache it gets its bias, clip, norm and RoPE and is
// stored in its final place: q a head at a time, k transposed, v packed. Nothing of q, k, v is read
// back before attention, which saves a pass over 3 N D numbers. (A norm over the whole width needs
// all heads of a row first: RunWidthNorm follows.) Thread-safe for tasks that don't overlap.
void RunProject(const AttentionLayer& layer, const ProjectTask& task, PassData* pass,
                WorkerScratch* scratch);

// Rows of one sequence and one head, ready to be stored.
struct HeadRows {
  const SequencePlan* sequence = nullptr;
  int64_t first = 0;  // index of the first row within the sequence
  RowsView rows;
};

// To where attention reads them (see PassData).
void StoreQueries(const AttentionLayer& layer, int64_t head, const HeadRows& rows, PassData* pass);
void StoreKeys(const AttentionLayer& layer, int64_t group, const HeadRows& rows, PassData* pass,
               WorkerScratch* scratch);
void StoreValues(const AttentionLayer& layer, int64_t group, const HeadRows& rows, PassData* pass);

// The other way round, for answers: a head of one sequence as f32 rows, `stride` numbers apart.
void LoadHead(const AttentionLayer& layer, ProjectionRole role, int64_t head,
              const SequencePlan& sequence, const PassData& pass, int64_t stride, float* out);

// Divides rows [row, row + rows) of all heads of q (or k) by their root mean square over the whole
// width, that of pruned heads too: PassData's squares. RoPE turns features without changing their
// size, so it may come first.
void RunWidthNorm(const AttentionLayer& layer, bool keys, int64_t row, int64_t rows,
                  PassData* pass);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_PROJECT_H_
