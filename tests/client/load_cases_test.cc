// SPDX-License-Identifier: Apache-2.0
// Cases of public bug reports about load testers, against a simulated clock.
#include <algorithm>

#include "gtest/gtest.h"
#include "tests/client/simulated_transport.h"

namespace headwise::client {
namespace {

constexpr uint32_t kP50 = 5000, kP75 = 7500, kP90 = 9000, kP95 = 9500, kP99 = 9900, kP999 = 9990;

// 1 ms a call, but frozen from second 3 to second 7: what is in there then goes on afterwards.
Served FrozenStub(const Call&, int64_t sent_ns) {
  const int64_t done_ns = sent_ns + kMillisecond;
  const bool frozen = done_ns > 3 * kSecond && sent_ns < 7 * kSecond;
  if (!frozen) return {kMillisecond};
  return {7 * kSecond + kMillisecond - std::max<int64_t>(0, 3 * kSecond - sent_ns) - sent_ns};
}

void ExpectSeconds(double value_ns, double seconds) {
  EXPECT_NEAR(value_ns * 1e-9, seconds, 0.05 * seconds);
}

TEST(Cases, T1_AStallCountsForEveryCallThatWasPlannedInIt) {
  const LoadReport open = Simulate(RunOptions(100, absl::Seconds(10)), FrozenStub);
  EXPECT_EQ(open.total.latency.count(), 1000u);
  ExpectSeconds(static_cast<double>(open.total.latency.Percentile(kP50)), 0.001);
  ExpectSeconds(static_cast<double>(open.total.latency.Percentile(kP75)), 1.5);
  ExpectSeconds(static_cast<double>(open.total.latency.Percentile(kP90)), 3.0);
  ExpectSeconds(static_cast<double>(open.total.latency.Percentile(kP99)), 3.9);
  ExpectSeconds(static_cast<double>(open.total.latency.max_ns()), 4.0);
  ExpectSeconds(open.total.latency.mean_ns(), 0.8);
  EXPECT_EQ(open.verdict, Verdict::kOk);

  const LoadReport closed = Simulate(RunOptions(0, absl::Seconds(10)), FrozenStub);
  ExpectSeconds(static_cast<double>(closed.total.latency.Percentile(kP99)), 0.001);
  ExpectSeconds(static_cast<double>(closed.total.latency.max_ns()), 4.0);
}

TEST(Cases, T1_AGeneratorWithFewPlacesStillCountsFromThePlan) {
  // Two places only: during the stall no third call can leave, yet all of them count.
  LoadOptions options = RunOptions(100, absl::Seconds(10));
  options.concurrency = 2;
  const LoadReport report = Simulate(options, FrozenStub);
  EXPECT_EQ(report.total.latency.count(), 1000u);
  ExpectSeconds(static_cast<double>(report.total.latency.max_ns()), 4.0);
  EXPECT_GT(report.total.latency.mean_ns(), 0.8e9);
  EXPECT_LT(report.total.service.mean_ns(), 0.02e9);
  EXPECT_GT(report.total.send_delay.mean_ns(), 0.7e9);
  EXPECT_EQ(report.verdict, Verdict::kGeneratorLimited);
}

TEST(Cases, T2_OneScheduleForAllSenders) {
  const auto stub = [](const Call&, int64_t) { return Served{150 * kMillisecond}; };
  const LoadReport report = Simulate(RunOptions(50, absl::Seconds(20)), stub);
  EXPECT_EQ(report.total.sent, 1000u);
  EXPECT_NEAR(report.requests_per_s, 50, 0.5);
  EXPECT_LT(report.total.latency.Percentile(kP99), 170 * kMillisecond);
  EXPECT_NEAR(report.requests_per_s * report.total.service.mean_ns() * 1e-9, 7.5, 0.1);

  LoadOptions limited = RunOptions(50, absl::Seconds(20));
  limited.concurrency = 5;
  const LoadReport late = Simulate(limited, stub);
  EXPECT_NEAR(late.requests_per_s, 33.3, 0.5);
  EXPECT_EQ(late.verdict, Verdict::kGeneratorLimited);
  EXPECT_GT(late.total.send_delay.max_ns(), 6 * kSecond);  // a third of 20 s behind the plan
}

TEST(Cases, T3_AGeneratorWithoutPlacesSaysSo) {
  LoadOptions options = RunOptions(1000, absl::Seconds(10));
  options.concurrency = 10;
  const LoadReport report =
      Simulate(options, [](const Call&, int64_t) { return Served{100 * kMillisecond}; });
  EXPECT_EQ(report.planned, 10000u);
  EXPECT_NEAR(static_cast<double>(report.total.sent), 1000, 10);
  EXPECT_EQ(report.verdict, Verdict::kGeneratorLimited);

  const auto quick = [](const Call&, int64_t) { return Served{kMillisecond}; };
  const LoadOptions easy = RunOptions(100, absl::Seconds(10));
  EXPECT_EQ(Simulate(easy, quick, 0.95).verdict, Verdict::kGeneratorLimited);
  EXPECT_EQ(Simulate(easy, quick, 0.5).verdict, Verdict::kOk);
}

TEST(Cases, T4_PercentilesAreThoseOfAllSamplesMerged) {
  Distribution first, second;
  for (int i = 0; i < 2000; ++i) first.Add(8 * kMillisecond);
  for (int i = 0; i < 15; ++i) second.Add(900 * kMillisecond);
  Distribution all = first;
  all.Merge(second);
  ExpectTime(all.Percentile(kP95), 8 * kMillisecond);
  ExpectTime(all.Percentile(kP99), 8 * kMillisecond);
  ExpectTime(all.Percentile(kP999), 900 * kMillisecond);
}

TEST(Cases, T4_PercentilesAreNotThoseOfWindowsAveraged) {
  // Three calls a second for 100 s; in each of 15 different seconds one call takes 500 ms.
  const LoadReport report =
      Simulate(RunOptions(3, absl::Seconds(100)), [](const Call& call, int64_t) {
        const bool slow = call.id % 18 == 0 && call.id < 15 * 18;
        return Served{slow ? 500 * kMillisecond : 2 * kMillisecond};
      });
  EXPECT_EQ(report.total.latency.count(), 300u);
  ExpectTime(report.total.latency.Percentile(kP95), 2 * kMillisecond);
  ExpectTime(report.total.latency.Percentile(kP99), 500 * kMillisecond);
  // 300 calls say nothing firm about the slowest hundredth.
  EXPECT_FALSE(report.total.latency.SupportedPercentile(kP99).has_value());
}

TEST(Cases, T7_FailuresAreCountedApart) {
  const LoadReport half =
      Simulate(RunOptions(100, absl::Seconds(10)), [](const Call& call, int64_t) {
        if (call.id % 2 == 1) {
          return Served{kMillisecond / 10, absl::StatusCode::kResourceExhausted};
        }
        return Served{10 * kMillisecond};
      });
  EXPECT_EQ(half.total.latency.count(), 500u);
  ExpectTime(half.total.latency.Percentile(kP50), 10 * kMillisecond);
  ExpectTime(half.total.all_latency.Percentile(kP50), kMillisecond / 10);
  EXPECT_NEAR(half.requests_per_s, 50, 0.5);
  EXPECT_EQ(half.total.errors.at({"RESOURCE_EXHAUSTED", ""}), 500u);

  const LoadReport none = Simulate(RunOptions(100, absl::Seconds(1)), [](const Call&, int64_t) {
    return Served{kMillisecond, absl::StatusCode::kUnavailable};
  });
  EXPECT_EQ(none.verdict, Verdict::kFail);
  EXPECT_EQ(none.total.latency.count(), 0u);

  const LoadReport timeouts =
      Simulate(RunOptions(100, absl::Seconds(10)), [](const Call& call, int64_t) {
        if (call.id % 10 == 0) return Served{kSecond, absl::StatusCode::kDeadlineExceeded};
        return Served{kMillisecond};
      });
  EXPECT_EQ(timeouts.total.errors.at({"DEADLINE_EXCEEDED", ""}), 100u);
  EXPECT_GE(timeouts.total.all_latency.Percentile(kP95), kSecond);
}

TEST(Cases, T8_WarmUpStaysOutOfTheFigures) {
  const auto cold_start = [](const Call& call, int64_t) {
    return Served{call.id < 20 ? 500 * kMillisecond : 5 * kMillisecond};
  };
  LoadOptions options = RunOptions(0, absl::Milliseconds(980 * 5));
  options.warmup = 20;
  const LoadReport warm = Simulate(options, cold_start);
  EXPECT_EQ(warm.warmup, 20u);
  EXPECT_EQ(warm.total.latency.count(), 980u);
  ExpectTime(warm.total.latency.Percentile(kP99), 5 * kMillisecond);

  const LoadReport cold =
      Simulate(RunOptions(0, absl::Milliseconds(20 * 500 + 980 * 5)), cold_start);
  EXPECT_EQ(cold.total.latency.count(), 1000u);
  ExpectTime(cold.total.latency.Percentile(kP99), 500 * kMillisecond);
  EXPECT_NEAR(cold.total.latency.mean_ns(), 14.9e6, 0.1e6);
}

}  // namespace
}  // namespace headwise::client
