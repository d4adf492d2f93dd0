// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/head_blocks.h"

#include <algorithm>

namespace headwise {
namespace {

// Four 16-lane registers of results a row: the width at which the microkernel is fastest.
constexpr int64_t kBlockColumns = 64;
// Blocks of odd widths may be wider, to waste less; their panels must stay in the second-level
// cache.
constexpr int64_t kMostColumns = 200;

// What the microkernel takes a column: registers of results a row over those that a column fills.
// What is left beyond blocks of 64 has too few independent sums to keep the multipliers busy.
double CostOfColumn(int64_t width) {
  constexpr double kCostOfRest[] = {0.0, 1.6, 2.2, 3.1, 4.0};  // by its registers
  constexpr int64_t kLanes = 16;
  const int64_t whole = width / kBlockColumns, rest = width % kBlockColumns;
  const double cost = 4.0 * static_cast<double>(whole) + kCostOfRest[(rest + kLanes - 1) / kLanes];
  return cost / static_cast<double>(width);
}

// How many of the heads that begin the list make the next block.
size_t HeadsOfBlock(absl::Span<const int64_t> widths) {
  size_t best = 1;
  int64_t width = 0, best_width = 0;
  for (size_t h = 0; h < widths.size(); ++h) {
    width += widths[h];
    if (h > 0 && width > kMostColumns) break;
    const bool fits = width <= kBlockColumns;
    if (fits || h == 0 || CostOfColumn(width) < CostOfColumn(best_width)) {
      best = h + 1;
      best_width = width;
    }
  }
  return best;
}

}  // namespace

std::vector<HeadBlock> MakeHeadBlocks(ProjectionRole role, absl::Span<const int64_t> widths) {
  std::vector<HeadBlock> blocks;
  for (size_t h = 0; h < widths.size();) {
    const size_t end = h + HeadsOfBlock(widths.subspan(h));
    HeadBlock block{role, static_cast<int64_t>(h), static_cast<int64_t>(end), 0};
    for (; h < end; ++h) block.width += widths[h];
    blocks.push_back(block);
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
