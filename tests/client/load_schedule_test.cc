// SPDX-License-Identifier: Apache-2.0
// Arrivals, lengths, and how the runner deals them out.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "client/load/arrivals.h"
#include "client/load/lengths.h"
#include "client/status.h"
#include "core/format/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/simulated_transport.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> AllPlanned(Arrivals* arrivals) {
  std::vector<int64_t> planned;
  for (; arrivals->Peek().has_value(); arrivals->Pop()) planned.push_back(*arrivals->Peek());
  return planned;
}

TEST(OpenArrivalsTest, PlansConstantGaps) {
  OpenArrivals arrivals(4, /*poisson=*/false, kSecond, 0, 0);
  EXPECT_THAT(AllPlanned(&arrivals),
              ElementsAre(0, 250 * kMillisecond, 500 * kMillisecond, 750 * kMillisecond));
  OpenArrivals many(300, false, 100 * kSecond, 0, 0);
  EXPECT_EQ(AllPlanned(&many).size(), 30000u);  // no drift from a gap that isn't a whole ns
}

TEST(OpenArrivalsTest, StartsTheWindowAfterTheWarmUp) {
  OpenArrivals arrivals(4, false, kSecond, 2, 0);
  EXPECT_EQ(AllPlanned(&arrivals).size(), 6u);
  EXPECT_EQ(arrivals.window_begin_ns(), 500 * kMillisecond);
}

TEST(OpenArrivalsTest, PoissonGapsHaveTheirMeanAndSpread) {
  OpenArrivals arrivals(1000, /*poisson=*/true, 100 * kSecond, 0, 7);
  const std::vector<int64_t> planned = AllPlanned(&arrivals);
  const double n = static_cast<double>(planned.size());
  EXPECT_NEAR(n, 100000, 4 * std::sqrt(100000));
  double sum = 0, squares = 0;
  for (size_t i = 1; i < planned.size(); ++i) {
    const double gap_ms = static_cast<double>(planned[i] - planned[i - 1]) / kMillisecond;
    EXPECT_GE(gap_ms, 0);
    sum += gap_ms;
    squares += gap_ms * gap_ms;
  }
  const double mean = sum / n;
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean), mean, 0.03);  // exponential: spread is mean
  OpenArrivals again(1000, true, 100 * kSecond, 0, 7);
  EXPECT_EQ(AllPlanned(&again), planned);
}

TEST(RateScheduleTest, PlansStepsAndRamps) {
  const auto rates = RateSchedule::Parse("100:10s,100-500:20s,500-0:1s");
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_DOUBLE_EQ(rates->seconds(), 31);
  EXPECT_DOUBLE_EQ(rates->calls(), 1000 + 6000 + 250);
  EXPECT_DOUBLE_EQ(*rates->TimeOf(500), 5);
  // In a ramp of a + s t calls a second, a t + s t^2 / 2 calls have been planned by t.
  for (const double t : {0.0, 1.0, 7.5, 19.9}) {
    EXPECT_NEAR(*rates->TimeOf(1000 + 100 * t + 10 * t * t), 10 + t, 1e-9);
  }
  for (const double t : {0.0, 0.5, 0.9}) {
    EXPECT_NEAR(*rates->TimeOf(7000 + 500 * t - 250 * t * t), 30 + t, 1e-9);
  }
  EXPECT_FALSE(rates->TimeOf(7250).has_value());
  EXPECT_EQ(rates->PieceAt(9.99), 0u);
  EXPECT_EQ(rates->PieceAt(10), 1u);
  EXPECT_EQ(rates->PieceAt(100), 2u);
  for (const char* text :
       {"", "100", "100:10", "0:1s", "5-0-5:1s", "-5:1s", "1e7:1s", "5:0s", "5:1s,"}) {
    EXPECT_TRUE(IsUsageError(RateSchedule::Parse(text).status())) << text;
  }
}

TEST(OpenArrivalsTest, FollowsARampAfterItsWarmUp) {
  for (const bool poisson : {false, true}) {
    OpenArrivals arrivals(*RateSchedule::Parse("0-1000:10s"), poisson, 100, 1);
    const std::vector<int64_t> planned = AllPlanned(&arrivals);
    EXPECT_TRUE(std::is_sorted(planned.begin(), planned.end()));
    const double window = static_cast<double>(planned.size()) - 100;
    EXPECT_NEAR(window, 5000, poisson ? 4 * std::sqrt(5000) : 0);
    // A quarter of the calls is planned in the first half.
    const auto half =
        std::lower_bound(planned.begin(), planned.end(), arrivals.window_begin_ns() + 5 * kSecond);
    EXPECT_NEAR(static_cast<double>(half - planned.begin()) - 100, 1250, poisson ? 150 : 1);
  }
}

TEST(ClosedArrivalsTest, PlansACallWhenACallerIsFree) {
  ClosedArrivals arrivals(2, kSecond, 0);
  EXPECT_THAT(AllPlanned(&arrivals), ElementsAre(0, 0));
  arrivals.Completed(300);
  EXPECT_THAT(AllPlanned(&arrivals), ElementsAre(300));
  arrivals.Completed(kSecond);
  EXPECT_FALSE(arrivals.Peek().has_value());
}

TEST(LengthsTest, FixedAndUniform) {
  EXPECT_EQ(Lengths::Parse("fixed:7", 0)->Next(), 7u);
  Lengths uniform = *Lengths::Parse("uniform:2-5", 1);
  EXPECT_EQ(uniform.max(), 5u);
  std::map<uint32_t, int> seen;
  for (int i = 0; i < 4000; ++i) ++seen[uniform.Next()];
  ASSERT_EQ(seen.size(), 4u);
  for (const auto& [length, count] : seen) {
    EXPECT_GE(length, 2u);
    EXPECT_LE(length, 5u);
    EXPECT_NEAR(count, 1000, 150) << length;
  }
  Lengths a = *Lengths::Parse("uniform:1-4294967295", 3);
  Lengths b = *Lengths::Parse("uniform:1-4294967295", 3);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.Next(), b.Next());
}

TEST(LengthsTest, FilesAreTakenInOrderAgainAndAgain) {
  const TempDir dir;
  const std::string path = dir.Path("n.safetensors");
  OwnedTensor tensor{DType::kI32, {3}, std::vector<uint8_t>(12, 0)};
  for (size_t i = 0; i < 3; ++i) tensor.data[4 * i] = static_cast<uint8_t>(5 - i);
  ASSERT_TRUE(WriteSafetensors(path, {{"lengths", tensor.view()}}).ok());
  absl::StatusOr<Lengths> lengths = Lengths::Parse("file:" + path + ":lengths", 0);
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  std::vector<uint32_t> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(lengths->Next());
  EXPECT_THAT(taken, ElementsAre(5, 4, 3, 5, 4));
  EXPECT_EQ(lengths->max(), 5u);
}

TEST(LengthsTest, MixesByWeight) {
  Lengths lengths = *Lengths::Parse("3*fixed:16+1*uniform:256-512", 2);
  EXPECT_EQ(lengths.max(), 512u);
  int small = 0;
  for (int i = 0; i < 4000; ++i) {
    const uint32_t length = lengths.Next();
    small += length == 16 ? 1 : 0;
    EXPECT_TRUE(length == 16 || (length >= 256 && length <= 512)) << length;
  }
  EXPECT_NEAR(small, 3000, 120);
}

TEST(LengthsTest, ReadsRecordedLengthsFromText) {
  const TempDir dir;
  dir.Write("lengths.csv", "7, 3\n12\r\n");
  Lengths lengths = *Lengths::Parse("file:" + dir.Path("lengths.csv"), 0);
  std::vector<uint32_t> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(lengths.Next());
  EXPECT_THAT(taken, ElementsAre(7, 3, 12, 7));
  dir.Write("wrong.txt", "7 x");
  dir.Write("zero.txt", "0");
  dir.Write("empty.txt", "");
  for (const char* name : {"wrong.txt", "zero.txt", "empty.txt", "absent.txt"}) {
    const absl::Status status = Lengths::Parse("file:" + dir.Path(name), 0).status();
    EXPECT_FALSE(status.ok()) << name;
    EXPECT_FALSE(IsUsageError(status)) << status;
  }
}

TEST(LengthsTest, RefusesWhatItCannotDraw) {
  for (const char* text :
       {"", "fixed:0", "fixed:x", "uniform:3", "uniform:5-2", "uniform:0-2", "uniform:1-2-3",
        "normal:5", "0*fixed:3", "fixed:3+", "x*fixed:3", "fixed:3+normal:2"}) {
    EXPECT_TRUE(IsUsageError(Lengths::Parse(text, 0).status())) << text;
  }
  const absl::Status absent = Lengths::Parse("file:/nonexistent.npy", 0).status();
  EXPECT_FALSE(absent.ok());
  EXPECT_FALSE(IsUsageError(absent));
}

TEST(RunnerTest, MixTakesMethodsInTurn) {
  LoadOptions options = RunOptions(10, absl::Seconds(1));
  options.mix = Mix::kMix;
  int ablations = 0;
  Simulate(options, [&ablations](const Call& call, int64_t) {
    ablations += call.method == Method::kAblate ? 1 : 0;
    return Served{kMillisecond};
  });
  EXPECT_EQ(ablations, 5);
}

TEST(RunnerTest, ReportsProgressTwiceASecond) {
  SimulatedTransport transport([](const Call&, int64_t) { return Served{kMillisecond}; });
  Lengths lengths = *Lengths::Parse("fixed:1", 0);
  OpenArrivals arrivals(10, false, 3 * kSecond, 0, 0);
  std::vector<double> at;
  Runner::Settings settings;
  settings.progress = [&at](const RunProgress& progress) { at.push_back(progress.elapsed_s); };
  Runner(settings, &arrivals, &lengths, &transport).Run();
  EXPECT_GE(at.size(), 6u);
  EXPECT_LE(at.size(), 8u);
}

TEST(RunnerTest, ThroughputOfAnOverloadedServerCountsItsLateAnswers) {
  // One call a second's worth of work, two a second asked: the last answer comes at 20 s.
  int64_t free_ns = 0;
  const LoadReport report =
      Simulate(RunOptions(2, absl::Seconds(10)), [&free_ns](const Call&, int64_t sent_ns) {
        free_ns = std::max(free_ns, sent_ns) + kSecond;
        return Served{free_ns - sent_ns};
      });
  EXPECT_NEAR(report.requests_per_s, 1, 1e-6);
}

}  // namespace
}  // namespace headwise::client
