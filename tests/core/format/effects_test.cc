// SPDX-License-Identifier: Apache-2.0
#include "core/format/effects.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace headwise {
namespace {

// Sums of `n` sequences whose lengths and effects vary together, as real ones do.
std::vector<EffectSums> Simulate(int n, std::mt19937* random) {
  std::lognormal_distribution<double> length(0.0, 0.3), share(-1.5, 0.4);
  std::vector<EffectSums> sums;
  for (int i = 0; i < n; ++i) {
    const double y_sq = length(*random);
    const double delta_sq = y_sq * share(*random);
    sums.push_back({y_sq, 0.4 * delta_sq, delta_sq});
  }
  return sums;
}

std::vector<int64_t> Units(int n) {
  std::vector<int64_t> units;
  for (int i = 0; i < n; ++i) units.push_back(i);
  return units;
}

TEST(Effects, QuantilesOfTheNormalDistribution) {
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-12);
  EXPECT_NEAR(NormalQuantile(0.5), 0.0, 1e-15);
  EXPECT_NEAR(NormalQuantile(1e-4), -3.719016485455709, 1e-11);
  EXPECT_NEAR(NormalQuantile(0.01), -2.326347874040841, 1e-12);
}

// The interval from its definition, resample by resample, with loops and generator of its own.
TEST(Effects, IntervalsAreThoseOfAPlainBootstrap) {
  std::mt19937 random(5);
  const int n = 20, resamples = 40000;
  const std::vector<EffectSums> sums = Simulate(n, &random);
  const auto ratio = [&](const std::vector<int>& picked) {
    double y = 0.0, d = 0.0;
    for (const int i : picked) {
      y += sums[static_cast<size_t>(i)].y_sq;
      d += sums[static_cast<size_t>(i)].delta_sq;
    }
    return std::sqrt(d / y);
  };
  std::vector<int> all(n);
  for (int i = 0; i < n; ++i) all[static_cast<size_t>(i)] = i;
  const double estimate = ratio(all);
  std::vector<double> values, left_out;
  std::uniform_int_distribution<int> pick(0, n - 1);
  int below = 0;
  for (int b = 0; b < resamples; ++b) {
    std::vector<int> picked;
    for (int i = 0; i < n; ++i) picked.push_back(pick(random));
    values.push_back(ratio(picked));
    below += values.back() < estimate ? 1 : 0;
  }
  double mean = 0.0, squares = 0.0, cubes = 0.0;
  for (int i = 0; i < n; ++i) {
    std::vector<int> rest;
    for (const int j : all) {
      if (j != i) rest.push_back(j);
    }
    left_out.push_back(ratio(rest));
    mean += left_out.back() / n;
  }
  for (const double value : left_out) {
    squares += (mean - value) * (mean - value);
    cubes += std::pow(mean - value, 3);
  }
  std::sort(values.begin(), values.end());
  const double a = cubes / (6.0 * std::pow(squares, 1.5));
  const double z0 = NormalQuantile(static_cast<double>(below) / resamples);
  const auto bound = [&](double z) {
    const double moved = z0 + (z0 + z) / (1.0 - a * (z0 + z));
    const double p = 0.5 * std::erfc(-moved / std::sqrt(2.0));
    return values[static_cast<size_t>(p * resamples)];
  };
  const Resamples drawn(n, {.level = 0.95, .resamples = resamples, .seed = 3});
  const EffectIntervals intervals = IntervalsOf({sums}, Units(n), &drawn);
  ASSERT_TRUE(intervals.relative_l2.has_value());
  // Two sets of 40,000 resamples: quantiles differ by about 0.5 % of the interval's width.
  const double width = bound(1.96) - bound(-1.96);
  EXPECT_NEAR(intervals.relative_l2->low, bound(-1.959964), 0.03 * width);
  EXPECT_NEAR(intervals.relative_l2->high, bound(1.959964), 0.03 * width);
  EXPECT_EQ(intervals.relative_l2->resamples, resamples);
}

TEST(Effects, NominalCoverageIsKept) {
  std::mt19937 random(7);
  // The true figure: expectations of lognormals.
  const double truth = std::sqrt(std::exp(-1.5 + 0.5 * 0.4 * 0.4));
  int covered = 0;
  const int rounds = 2000;
  const Resamples drawn(30, {.level = 0.95, .resamples = 2000, .seed = 1});
  for (int round = 0; round < rounds; ++round) {
    const EffectIntervals intervals = IntervalsOf({Simulate(30, &random)}, Units(30), &drawn);
    const Interval& interval = *intervals.relative_l2;
    covered += interval.low <= truth && truth <= interval.high ? 1 : 0;
  }
  EXPECT_GE(covered, 0.92 * rounds);
  EXPECT_LE(covered, 0.97 * rounds);
}

TEST(Effects, SameSeedSameResamples) {
  std::mt19937 random(9);
  const std::vector<EffectSums> sums = Simulate(12, &random);
  const auto low = [&](uint32_t seed) {
    const Resamples drawn(12, {.seed = seed});
    return IntervalsOf({sums}, Units(12), &drawn).l2->low;
  };
  EXPECT_EQ(low(4), low(4));
  EXPECT_NE(low(4), low(5));
  // Every resample holds as many sequences as there are.
  const Resamples drawn(12, {});
  for (const double count : drawn.Sums(std::vector<double>(12, 1.0))) EXPECT_EQ(count, 12.0);
}

TEST(Effects, AFigureThatDoesNotVaryHasAPointForAnInterval) {
  const std::vector<EffectSums> sums(9, {4.0, 1.0, 1.0});
  const Resamples drawn(9, {});
  const EffectIntervals intervals = IntervalsOf({sums}, Units(9), &drawn);
  EXPECT_EQ(intervals.relative_l2->low, 0.5);
  EXPECT_EQ(intervals.relative_l2->high, 0.5);
}

}  // namespace
}  // namespace headwise
