// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/position_buckets.h"

#include <limits>
#include <utility>

#include "core/reference/reference_position.h"
#include "gtest/gtest.h"

namespace headwise {
namespace {

PositionBiasSpec Buckets(int64_t buckets, int64_t max_distance, bool bidirectional) {
  PositionBiasSpec spec;
  spec.kind = PositionBiasKind::kT5Buckets;
  spec.buckets = buckets;
  spec.max_distance = max_distance;
  spec.bidirectional = bidirectional;
  return spec;
}

// The published values for 32 buckets and 128.
TEST(PositionBuckets, Encoder) {
  for (const auto& [relative, bucket] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{-200, 15},
                                                          {-128, 15},
                                                          {-64, 14},
                                                          {-16, 10},
                                                          {-8, 8},
                                                          {-7, 7},
                                                          {-1, 1},
                                                          {0, 0},
                                                          {1, 17},
                                                          {7, 23},
                                                          {8, 24},
                                                          {16, 26},
                                                          {64, 30},
                                                          {127, 31},
                                                          {128, 31},
                                                          {200, 31}}) {
    EXPECT_EQ(T5Bucket(Buckets(32, 128, true), relative), bucket) << relative;
    EXPECT_EQ(ReferenceBucket(Buckets(32, 128, true), relative), bucket) << relative;
  }
}

TEST(PositionBuckets, Decoder) {
  for (const auto& [relative, bucket] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{5, 0},
                                                          {0, 0},
                                                          {-1, 1},
                                                          {-15, 15},
                                                          {-16, 16},
                                                          {-17, 16},
                                                          {-64, 26},
                                                          {-127, 31},
                                                          {-128, 31}}) {
    EXPECT_EQ(T5Bucket(Buckets(32, 128, false), relative), bucket) << relative;
    EXPECT_EQ(ReferenceBucket(Buckets(32, 128, false), relative), bucket) << relative;
  }
}

TEST(PositionBuckets, AgreeWithTheReference) {
  for (const bool bidirectional : {false, true}) {
    for (const auto& [buckets, distance] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {4, 3}, {8, 12}, {9, 20}, {16, 128}, {32, 512}}) {
      const PositionBiasSpec spec = Buckets(buckets, distance, bidirectional);
      for (int64_t relative = -1000; relative <= 1000; ++relative) {
        const int64_t bucket = T5Bucket(spec, relative);
        EXPECT_EQ(bucket, ReferenceBucket(spec, relative)) << buckets << " " << relative;
        EXPECT_GE(bucket, 0);
        EXPECT_LT(bucket, buckets);
      }
    }
  }
}

TEST(PositionBuckets, TheFarthestPositionsStayInTheTable) {
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(T5Bucket(Buckets(32, 128, true), kFar), 31);
  EXPECT_EQ(T5Bucket(Buckets(32, 128, true), -kFar), 15);
  EXPECT_EQ(T5Bucket(Buckets(32, 128, false), -kFar), 31);
}

}  // namespace
}  // namespace headwise
