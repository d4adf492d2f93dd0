// SPDX-License-Identifier: Apache-2.0
// How the columns of q, k and v are cut into blocks of whole heads: 64 columns, or as many more as
// leave the fewest lanes unused.
#ifndef HEADWISE_CORE_KERNEL_HEAD_BLOCKS_H_
#define HEADWISE_CORE_KERNEL_HEAD_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace headwise {

// kStatistic: columns of heads that have gone, of which a norm over the whole width of q or k still
// takes the squares.
enum class ProjectionRole : uint8_t { kQ, kK, kV, kStatistic };

// A block of a projection's columns: heads [first_head, last_head) of one role. A head is never
// cut, because RoPE and the transposition of k work on whole heads. (Of a statistic's columns each
// block counts as a head.)
struct HeadBlock {
  ProjectionRole role = ProjectionRole::kQ;
  int64_t first_head = 0;
  int64_t last_head = 0;
  int64_t width = 0;
};

// The blocks of heads of the given widths, in head order.
std::vector<HeadBlock> MakeHeadBlocks(ProjectionRole role, absl::Span<const int64_t> widths);

// Column blocks of a matrix without heads: 64 columns each, the last one narrower.
std::vector<int64_t> MakeColumnBlocks(int64_t columns);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_HEAD_BLOCKS_H_
