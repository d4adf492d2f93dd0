// SPDX-License-Identifier: Apache-2.0
#include "core/format/head_comparison.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise {
namespace {

using ::testing::Contains;
using ::testing::Not;

int64_t ValueOf(const HeadCountRow& row, const std::string& id) {
  for (const Count& count : row.counts) {
    if (count.id == id) return count.value;
  }
  ADD_FAILURE() << id;
  return -1;
}

TEST(HeadComparison, SaysWhatChangesWithTheNumberOfHeads) {
  const CountShape layer = *MakeCountShape(512, 8, 0, 0, 0);
  const absl::StatusOr<HeadComparison> answer = CompareHeadCounts(layer, {2, 10, 10}, {1, 2, 16});
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->rows.size(), 3u);
  EXPECT_EQ(answer->rows[0].dk, 512);
  EXPECT_EQ(answer->rows[2].dk, 32);
  EXPECT_DOUBLE_EQ(answer->rows[1].scale, 1.0 / 16.0);
  EXPECT_EQ(ValueOf(answer->rows[0], "score_elements"), 200);
  EXPECT_EQ(ValueOf(answer->rows[2], "score_elements"), 3200);
  for (const char* id : {"score_elements", "score_elements_causal", "score_tensor_bytes"}) {
    EXPECT_THAT(answer->changes, Contains(id));
  }
  EXPECT_EQ(answer->changes.size(), 3u);
  for (const char* id : {"parameters", "macs_dense", "kv_bytes_per_token"}) {
    EXPECT_THAT(answer->unchanged, Contains(id));
    EXPECT_THAT(answer->changes, Not(Contains(id)));
  }
}

// Grouped heads are compared as heads with keys and values of their own.
TEST(HeadComparison, UngroupsGroupedHeads) {
  CountShape layer = *MakeCountShape(576, 9, 3, 0, 0);
  layer.q_statistic_rows = layer.k_statistic_rows = 64;  // of heads that were pruned: not cut anew
  const absl::StatusOr<HeadComparison> answer = CompareHeadCounts(layer, {1, 4, 4}, {9});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(ValueOf(answer->rows[0], "parameters"), 4 * 576 * 576);
}

TEST(HeadComparison, RefusesWhatDoesNotDivide) {
  const CountShape layer = *MakeCountShape(512, 8, 0, 0, 0);
  EXPECT_EQ(CompareHeadCounts(layer, {1, 4, 4}, {1, 7}).status().message(),
            "head_counts: must divide the heads' widths together (dk 512, dv 512) evenly; was 7");
  EXPECT_FALSE(CompareHeadCounts(layer, {1, 4, 4}, {0}).ok());
  EXPECT_EQ(CompareHeadCounts(layer, {1, 4, 4}, {}).status().message(),
            "head_counts: must name a head count; was empty");
  EXPECT_FALSE(CompareHeadCounts(layer, {1, -4, 4}, {1}).ok());
}

// The best single head by trying: weights in steps, W_O by least squares.
TEST(OneHotReadings, NoSingleHeadComesNearer) {
  const OneHotReadings readings = CompareOneHotReadings();
  EXPECT_EQ(readings.two_heads, (OneHotReadings::Pair{1.0, 1.0}));
  double best = 1e9, best_any = 1e9;
  for (int i = 0; i <= 1000; ++i) {
    const double p = i / 1000.0, q = 1.0 - p;
    best = std::min(best, std::hypot(1.0 - p, 1.0 - q));
    // Of output f the wanted coefficients over (key, feature) are 1 at (f, f); with weights (p, q)
    // the best column of W_O leaves 1 - weight_f^2 / (p^2 + q^2) of its square.
    const double length = p * p + q * q;
    best_any = std::min(best_any, std::sqrt((2.0 - (p * p + q * q) / length) / 2.0));
  }
  EXPECT_NEAR(readings.error, best, 1e-12);
  EXPECT_NEAR(readings.error, std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(readings.relative_error, 0.5, 1e-12);
  EXPECT_NEAR(readings.relative_error_any_wo, best_any, 1e-9);
  EXPECT_NEAR(readings.best_weights[0] + readings.best_weights[1], 1.0, 1e-12);
}

}  // namespace
}  // namespace headwise
