// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/head_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace headwise {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Widths(const std::vector<int64_t>& heads) {
  std::vector<int64_t> widths;
  for (const HeadBlock& block : MakeHeadBlocks(ProjectionRole::kK, heads)) {
    widths.push_back(block.width);
  }
  return widths;
}

TEST(HeadBlocks, HeadsThatFillRegistersStayApartOrJoinUpTo64Columns) {
  EXPECT_THAT(Widths({64, 64, 64}), ElementsAre(64, 64, 64));
  EXPECT_THAT(Widths({128, 128}), ElementsAre(128, 128));
  EXPECT_THAT(Widths({32, 32, 32}), ElementsAre(64, 32));
  EXPECT_THAT(Widths({16, 16, 16, 16, 16}), ElementsAre(64, 16));
  EXPECT_THAT(Widths({256}), ElementsAre(256));
}

TEST(HeadBlocks, OddWidthsJoinWhereFewerLanesAreWasted) {
  EXPECT_THAT(Widths({58, 58, 58, 58}), ElementsAre(174, 58));
  EXPECT_THAT(Widths({72, 72, 72}), ElementsAre(144, 72));
  EXPECT_THAT(Widths({66, 66, 66}), ElementsAre(198));
}

TEST(HeadBlocks, EachHeadIsInOneBlockInOrder) {
  for (int64_t dk = 1; dk <= 300; ++dk) {
    const std::vector<int64_t> heads = {dk, 3, dk + 7, dk, 300, dk};
    int64_t next = 0;
    for (const HeadBlock& block : MakeHeadBlocks(ProjectionRole::kV, heads)) {
      EXPECT_EQ(block.role, ProjectionRole::kV);
      EXPECT_EQ(block.first_head, next);
      EXPECT_GT(block.last_head, block.first_head);
      EXPECT_EQ(block.width, std::accumulate(heads.begin() + block.first_head,
                                             heads.begin() + block.last_head, int64_t{0}));
      EXPECT_LE(block.width, std::max<int64_t>(200, heads[static_cast<size_t>(next)])) << dk;
      next = block.last_head;
    }
    EXPECT_EQ(next, 6);
  }
}

}  // namespace
}  // namespace headwise
