// SPDX-License-Identifier: Apache-2.0
// Histograms and bounds against sorted samples.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "client/load/statistics.h"
#include "client/load/threshold.h"
#include "client/status.h"
#include "gtest/gtest.h"
#include "tests/client/simulated_transport.h"

namespace headwise::client {
namespace {

// Times over nine decades.
std::vector<int64_t> WideSample(size_t n) {
  std::mt19937_64 random(3);
  std::vector<int64_t> values;
  for (size_t i = 0; i < n; ++i) {
    const double exponent = 9 * static_cast<double>(random() >> 11) * 0x1p-53;
    values.push_back(static_cast<int64_t>(std::pow(10.0, exponent)));
  }
  return values;
}

TEST(DistributionTest, PercentilesLieWithinABucketAboveTheExactOnes) {
  for (const int bits : {Distribution::kFineBits, Distribution::kCoarseBits}) {
    std::vector<int64_t> values = WideSample(20000);
    Distribution first(bits), second(bits);
    for (size_t i = 0; i < values.size(); ++i) (i % 3 == 0 ? first : second).Add(values[i]);
    first.Merge(second);
    std::sort(values.begin(), values.end());
    EXPECT_EQ(first.count(), values.size());
    EXPECT_EQ(first.max_ns(), values.back());
    for (uint32_t p = 1; p <= 10000; ++p) {
      const auto rank = static_cast<size_t>((values.size() * p + 9999) / 10000);
      const int64_t exact = values[std::max<size_t>(1, rank) - 1];
      const int64_t told = first.Percentile(p);
      ASSERT_GE(told, exact) << p;
      ASSERT_LE(static_cast<double>(told - exact),
                static_cast<double>(exact) * std::ldexp(1.0, 1 - bits))
          << p;
    }
  }
}

TEST(DistributionTest, HoldsTheEndsOfItsRange) {
  Distribution values;
  for (const int64_t value : {int64_t{-5}, int64_t{0}, int64_t{2047}, int64_t{2048},
                              std::numeric_limits<int64_t>::max()}) {
    values.Add(value);
  }
  EXPECT_EQ(values.Percentile(4000), 0);
  EXPECT_EQ(values.Percentile(6000), 2047);
  EXPECT_EQ(values.Percentile(8000), 2049);
  EXPECT_EQ(values.Percentile(10000), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Distribution().mean_ns(), 0);
}

TEST(DistributionTest, BucketsHoldEveryValueOnce) {
  Distribution values, again;
  for (const int64_t value : WideSample(1000)) values.Add(value);
  for (const auto& [largest_ns, count] : values.Buckets()) again.Add(largest_ns, count);
  EXPECT_EQ(again.count(), 1000u);
  EXPECT_EQ(again.Buckets(), values.Buckets());
  EXPECT_EQ(values.CountUpTo(values.Percentile(5000)), 500u);
  EXPECT_EQ(values.CountUpTo(values.max_ns()), 1000u);
}

TEST(ThresholdTest, ReadsEveryFigure) {
  const auto bounds =
      ParseThresholds("threshold", "p99.9<20ms,mean<1s,max<2s,errors<0.5%,requests_per_s>100");
  ASSERT_TRUE(bounds.ok()) << bounds.status();
  ASSERT_EQ(bounds->size(), 5u);
  EXPECT_EQ((*bounds)[0].per_10000, 9990u);
  EXPECT_EQ((*bounds)[0].bound, 20e6);
  EXPECT_DOUBLE_EQ((*bounds)[3].bound, 0.005);
  for (const char* text : {"", "p99", "p0<1s", "p100<1s", "p99>1s", "p99<1", "p99<-1s", "errors>1%",
                           "errors<200%", "requests_per_s<5", "median<1s", "p99<1s,"}) {
    const absl::Status status = ParseThresholds("threshold", text).status();
    EXPECT_TRUE(IsUsageError(status)) << text;
  }
}

// What a run of a thousand calls, of which `failed` fail at once and the rest take 10 ms, makes of
// the bound.
bool Met(const char* bound, uint64_t failed) {
  LoadOptions options = RunOptions(100, absl::Seconds(10));
  options.thresholds = *ParseThresholds("threshold", bound);
  const LoadReport report = Simulate(options, [failed](const Call& call, int64_t) {
    if (call.id < failed) return Served{1, absl::StatusCode::kResourceExhausted};
    return Served{10 * kMillisecond};
  });
  EXPECT_EQ(report.verdict == Verdict::kOk, report.thresholds[0].met);
  return report.thresholds[0].met;
}

TEST(ThresholdTest, AFailedCallIsLaterThanAnyBound) {
  EXPECT_TRUE(Met("p99<11ms", 0));
  EXPECT_FALSE(Met("p99<9ms", 0));
  EXPECT_TRUE(Met("p99<11ms", 10));
  EXPECT_FALSE(Met("p99<11ms", 11));   // refusals in no time don't help
  EXPECT_FALSE(Met("p99.9<11ms", 0));  // too few calls to say
  EXPECT_TRUE(Met("max<11ms", 0));
  EXPECT_FALSE(Met("max<11ms", 1));
  EXPECT_TRUE(Met("mean<11ms", 5));
  EXPECT_TRUE(Met("errors<1%", 9));
  EXPECT_FALSE(Met("errors<1%", 10));
  EXPECT_TRUE(Met("requests_per_s>98", 10));
  EXPECT_FALSE(Met("requests_per_s>99.5", 10));
}

}  // namespace
}  // namespace headwise::client
