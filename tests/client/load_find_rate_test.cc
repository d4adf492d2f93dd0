// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "client/load/find_rate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/simulated_transport.h"

namespace headwise::client {
namespace {

TrialOutcome Up(double rate, double capacity) { return {.met = rate <= capacity}; }

TEST(FindRateTest, FindsTheCapacityFromEitherSide) {
  for (const double start : {1.0, 50.0, 437.0, 100000.0}) {
    const auto found = FindRate({.start = start}, [](double rate) { return Up(rate, 437); });
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_LE(found->rate, 437) << start;
    EXPECT_GE(found->rate, 437 / 1.05) << start;
    EXPECT_TRUE(found->confirmed);
    EXPECT_FALSE(found->generator_limited);
    EXPECT_LE(found->trials.size(), 30u);
    // The last trials ran the found rate again.
    for (size_t i = found->trials.size() - 2; i < found->trials.size(); ++i) {
      EXPECT_TRUE(found->trials[i].confirming);
      EXPECT_EQ(found->trials[i].rate, found->rate);
    }
  }
}

TEST(FindRateTest, ARateThatHeldOnceByLuckIsNotTheAnswer) {
  // 300 to 500 calls a second hold the first time only.
  int lucky = 0;
  const auto found = FindRate({}, [&lucky](double rate) {
    if (rate <= 300) return TrialOutcome{.met = true};
    return TrialOutcome{.met = rate <= 500 && ++lucky <= 4};
  });
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->confirmed);
  EXPECT_LE(found->rate, 300);
  EXPECT_GE(found->rate, 300 * 0.85);
}

TEST(FindRateTest, MakesNoClaimWhereTheGeneratorIsTheLimit) {
  const auto found = FindRate(
      {}, [](double rate) { return TrialOutcome{.met = rate <= 1000, .limited = rate > 1000}; });
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->generator_limited);
}

TEST(FindRateTest, EndsWhereNothingHoldsAndWhereEverythingDoes) {
  const auto none = FindRate({}, [](double) { return TrialOutcome{}; });
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->rate, 0);
  EXPECT_FALSE(none->confirmed);
  const auto all = FindRate({}, [](double) { return TrialOutcome{.met = true}; });
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->rate, 1e6);
  const auto flaky = FindRate({.most_trials = 12}, [turn = 0](double) mutable {
    return TrialOutcome{.met = ++turn % 2 == 0};
  });
  ASSERT_TRUE(flaky.ok());
  EXPECT_LE(flaky->trials.size(), 12u);
  const auto error = FindRate(
      {}, [](double) -> absl::StatusOr<TrialOutcome> { return absl::UnavailableError("gone"); });
  EXPECT_EQ(error.status(), absl::UnavailableError("gone"));
}

TEST(FindRateTest, FindsWhereAQueueGrows) {
  // One server of 4 ms a call, constant arrivals: up to 250 a second nobody waits.
  const auto found = FindRate({}, [](double rate) {
    LoadOptions options = RunOptions(rate, absl::Seconds(10));
    options.thresholds = *ParseThresholds("find-rate", "p99<20ms");
    int64_t free_ns = 0;
    const LoadReport report = Simulate(options, [&free_ns](const Call&, int64_t sent_ns) {
      free_ns = std::max(free_ns, sent_ns) + 4 * kMillisecond;
      return Served{free_ns - sent_ns};
    });
    return TrialOutcome{.met = report.verdict == Verdict::kOk};
  });
  ASSERT_TRUE(found.ok());
  EXPECT_NEAR(found->rate, 250, 250 * 0.06);
}

}  // namespace
}  // namespace headwise::client
