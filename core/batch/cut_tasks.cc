// SPDX-License-Identifier: Apache-2.0
#include "core/batch/cut_tasks.h"

#include <algorithm>
#include <numeric>

#include "core/kernel/tile_sizes.h"

namespace headwise {
namespace {

// A task should take about a millisecond at most: long enough that handing it out costs nothing,
// short enough that a cancelled request frees the core soon. At 100 GFLOP/s a core 60 M
// multiply-adds take 1.2 ms. The shortest ones, a block of columns or two for a few rows, take 2 to
// 5 µs: handing one out takes a tenth of a microsecond, and threads end a stage up to a task apart.
constexpr int64_t kMostMacs = 60'000'000;
constexpr int64_t kLeastMacs = 100'000;

// Of attention, whose speed is less even: 4 µs to an eighth of a millisecond.
constexpr int64_t kLeastTilesMacs = 200'000;
constexpr int64_t kMostTilesMacs = 6'250'000;

// A task is this part of what is left for each worker.
constexpr int64_t kShareOfRest = 4;

// So much, some 200 µs of two cores, isn't counted as left: the end of a stage, and the whole of a
// short one, is cut as finely as blocks allow. Where another thread of the server interrupts a
// worker, the others wait for no more than its task.
constexpr int64_t kFinelyCutMacs = 20'000'000;

}  // namespace

std::vector<BlockTask> CutTasks(absl::Span<const BlockProduct> products, int workers) {
  int64_t rest = 0, rows = 0;
  for (const BlockProduct& product : products) {
    rest += product.rows * product.blocks * product.block_macs;
    rows = std::max(rows, product.rows);
  }
  std::vector<BlockTask> tasks;
  for (int64_t row = 0; row < rows; row += kTileRows) {
    for (size_t p = 0; p < products.size(); ++p) {
      const BlockProduct& product = products[p];
      if (row >= product.rows) continue;
      const int64_t count = std::min(kTileRows, product.rows - row);
      const int64_t macs = count * product.block_macs;  // of a block
      for (int64_t block = 0, blocks = 0; block < product.blocks; block += blocks) {
        const int64_t wanted =
            std::clamp((rest - kFinelyCutMacs) / (kShareOfRest * workers), kLeastMacs, kMostMacs);
        blocks = std::clamp<int64_t>(wanted / macs, 1, product.blocks - block);
        tasks.push_back({p, row, count, block, block + blocks});
        rest -= blocks * macs;
      }
    }
  }
  return tasks;
}

std::vector<size_t> CutTiles(absl::Span<const int64_t> costs, int workers) {
  const int64_t all = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  const int64_t wanted =
      std::clamp(all / (kShareOfRest * workers), kLeastTilesMacs, kMostTilesMacs);
  std::vector<size_t> begin = {0};
  int64_t cost = 0;
  for (size_t tile = 0; tile < costs.size(); ++tile) {
    cost += costs[tile];
    if (cost < wanted && tile + 1 < costs.size()) continue;
    begin.push_back(tile + 1);
    cost = 0;
  }
  return begin;
}

}  // namespace headwise
