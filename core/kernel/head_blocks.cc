// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/head_blocks.h"

#include <algorithm>

namespace headwise {
namespace {

// Four 16-lane registers of results a row: the width at which the microkernel is fastest.
constexpr int64_t kBlockColumns = 64;

}  // namespace

std::vector<HeadBlock> MakeHeadBlocks(ProjectionRole role, absl::Span<const int64_t> widths) {
  std::vector<HeadBlock> blocks;
  for (size_t h = 0; h < widths.size(); ++h) {
    const bool joins = !blocks.empty() && blocks.back().width + widths[h] <= kBlockColumns;
    if (!joins) {
      blocks.push_back({role, static_cast<int64_t>(h), static_cast<int64_t>(h), 0});
    }
    blocks.back().last_head = static_cast<int64_t>(h) + 1;
    blocks.back().width += widths[h];
  }
  return blocks;
}

std::vector<int64_t> MakeColumnBlocks(int64_t columns) {
  std::vector<int64_t> widths;
  for (int64_t c = 0; c < columns; c += kBlockColumns) {
    widths.push_back(std::min(kBlockColumns, columns - c));
  }
  return widths;
}

}  // namespace headwise
