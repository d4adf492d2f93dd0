// SPDX-License-Identifier: Apache-2.0
// How a product of many rows with a packed matrix is cut into tasks for the workers.
#ifndef HEADWISE_CORE_BATCH_CUT_TASKS_H_
#define HEADWISE_CORE_BATCH_CUT_TASKS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace headwise {

// A product of `rows` rows with a matrix of `blocks` blocks of columns.
struct BlockProduct {
  int64_t rows = 0;
  int64_t blocks = 0;
  int64_t block_macs = 0;  // multiply-adds of one row with one block
};

// Rows [row, row + rows) of a product against its blocks [first_block, last_block).
struct BlockTask {
  size_t product = 0;  // index in what was given
  int64_t row = 0;
  int64_t rows = 0;  // at most kTileRows
  int64_t first_block = 0;
  int64_t last_block = 0;
};

// Tasks that cover the products, each element once. Those on the same rows follow each other, so
// that the rows are read from memory once. Tasks become shorter towards the end (guided
// self-scheduling, Polychronopoulos & Kuck 1987), so that no worker waits long for another one's
// last; none exceeds about a millisecond where blocks allow it.
std::vector<BlockTask> CutTasks(absl::Span<const BlockProduct> products, int workers);

// Several tiles to a task, so that handing it out costs nothing beside it: where each task begins,
// and the end. `costs` are the tiles', in multiply-adds.
std::vector<size_t> CutTiles(absl::Span<const int64_t> costs, int workers);

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_CUT_TASKS_H_
