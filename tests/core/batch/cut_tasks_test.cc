// SPDX-License-Identifier: Apache-2.0
#include "core/batch/cut_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/kernel/tile_sizes.h"

namespace headwise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

int64_t MacsOf(const BlockTask& task, absl::Span<const BlockProduct> products) {
  return task.rows * (task.last_block - task.first_block) * products[task.product].block_macs;
}

TEST(CutTasks, CoversEveryRowAndBlockOnce) {
  for (const int workers : {1, 2, 7}) {
    for (const int64_t rows : {1, 10, 64, 65, 1000}) {
      const std::vector<BlockProduct> products = {{rows, 12, 768 * 64}, {2 * rows, 5, 4096 * 64}};
      std::vector<std::vector<int>> seen(2);
      for (size_t p = 0; p < 2; ++p) {
        seen[p].resize(static_cast<size_t>(products[p].rows * products[p].blocks));
      }
      for (const BlockTask& task : CutTasks(products, workers)) {
        EXPECT_LE(task.rows, kTileRows);
        for (int64_t row = task.row; row < task.row + task.rows; ++row) {
          for (int64_t b = task.first_block; b < task.last_block; ++b) {
            ++seen[task.product][static_cast<size_t>(row * products[task.product].blocks + b)];
          }
        }
      }
      EXPECT_THAT(seen[0], Each(1));
      EXPECT_THAT(seen[1], Each(1));
    }
  }
}

TEST(CutTasks, EndsWithShortTasks) {
  const std::vector<BlockProduct> products = {{1024, 12, 768 * 64}, {1024, 24, 768 * 64}};
  const std::vector<BlockTask> tasks = CutTasks(products, 2);
  int64_t longest = 0;
  for (const BlockTask& task : tasks) longest = std::max(longest, MacsOf(task, products));
  EXPECT_GT(longest, 30'000'000);
  EXPECT_LE(longest, 75'000'000);
  // Nobody waits for more than a fiftieth of his half.
  EXPECT_LT(MacsOf(tasks.back(), products), 1024 * 36 * 768 * 64 / 2 / 50);
}

TEST(CutTasks, GivesEveryWorkerOfAShortProductAShare) {
  const std::vector<BlockProduct> products = {{10, 8, 512 * 64}, {10, 16, 512 * 64}};
  const std::vector<BlockTask> tasks = CutTasks(products, 2);
  int64_t longest = 0, all = 0;
  for (const BlockTask& task : tasks) {
    longest = std::max(longest, MacsOf(task, products));
    all += MacsOf(task, products);
  }
  EXPECT_LE(longest, all / 4);
  // Blocks of one tile of rows too: large parts first, single blocks in the end.
  EXPECT_EQ(longest, MacsOf(tasks.front(), products));
  EXPECT_EQ(tasks.back().last_block - tasks.back().first_block, 1);
}

TEST(CutTasks, CutsAShortProductAsFinelyAsBlocksAllow) {
  for (const BlockTask& task : CutTasks({{20, 24, 512 * 64}}, 2)) {
    EXPECT_EQ(task.last_block - task.first_block, 1);
  }
  // Of one row, a block would take less than a microsecond.
  for (const BlockTask& task : CutTasks({{1, 24, 512 * 64}}, 2)) {
    EXPECT_EQ(task.last_block - task.first_block, 3);
  }
}

TEST(CutTasks, OfNothingIsNothing) {
  const std::vector<BlockProduct> products = {{0, 12, 100}, {0, 24, 100}};
  EXPECT_THAT(CutTasks(products, 2), IsEmpty());
}

TEST(CutTiles, PutsShortTilesTogetherAndLeavesLongOnesAlone) {
  EXPECT_THAT(CutTiles(std::vector<int64_t>(8, 60'000), 2), ElementsAre(0, 4, 8));
  EXPECT_THAT(CutTiles({7'000'000, 7'000'000, 7'000'000}, 1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(CutTiles({}, 2), ElementsAre(0));
}

}  // namespace
}  // namespace headwise
