// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "client/load/compare.h"
#include "client/load/load_app.h"
#include "client/load/load_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/simulated_transport.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A run of 100 calls a second for 10 s whose service times scatter around `mean_ms`.
std::string ReportOf(double mean_ms, uint64_t seed,
                     LoadOptions options = RunOptions(100, absl::Seconds(10))) {
  std::mt19937_64 random(seed);
  return ReportJson(Simulate(options, [&](const Call&, int64_t) {
    const double spread = 0.5 + static_cast<double>(random() >> 11) * 0x1p-53;
    return Served{static_cast<int64_t>(mean_ms * spread * kMillisecond)};
  }));
}

TEST(CompareTest, EqualRunsShowNoDifference) {
  int shown = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto comparison = CompareReports(ReportOf(10, seed), ReportOf(10, 100 + seed), {});
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    shown += comparison->verdict == ComparisonVerdict::kNoDifferenceShown ? 0 : 1;
    ASSERT_FALSE(comparison->changes.empty());
    for (const Change& change : comparison->changes) {
      ASSERT_TRUE(change.low.has_value());
      EXPECT_LE(*change.low, *change.high);
      EXPECT_NEAR(change.change, 0, 0.1);
    }
  }
  EXPECT_LE(shown, 3);  // five in a hundred by chance
}

TEST(CompareTest, ASlowerRunIsCalledSlowerWithAnIntervalThatHoldsTheTruth) {
  const auto slower = CompareReports(ReportOf(10, 1), ReportOf(12, 2), {});
  ASSERT_TRUE(slower.ok()) << slower.status();
  EXPECT_EQ(slower->verdict, ComparisonVerdict::kSlower);
  for (const Change& change : slower->changes) {
    if (change.figure == "requests_per_s") continue;
    EXPECT_GT(*change.low, 0.1) << change.figure;
    EXPECT_LT(*change.low, 0.2) << change.figure;
    EXPECT_GT(*change.high, 0.19) << change.figure;
  }
  EXPECT_EQ(CompareReports(ReportOf(12, 2), ReportOf(10, 1), {})->verdict,
            ComparisonVerdict::kFaster);
  EXPECT_EQ(CompareReports(ReportOf(10, 1), ReportOf(12, 2), {.tolerance = 0.3})->verdict,
            ComparisonVerdict::kNoDifferenceShown);
}

TEST(CompareTest, GoesByRunsWhereThereAreFive) {
  // Within a run times hardly differ, between runs they do: windows would call that a change.
  const auto repeated = [](std::vector<double> means) {
    LoadOptions options = RunOptions(100, absl::Seconds(2));
    options.repeat = static_cast<uint32_t>(means.size());
    json whole;
    for (size_t run = 0; run < means.size(); ++run) {
      json report = json::parse(ReportOf(means[run], run, options));
      for (json& window : report["windows"]) window["run"] = run;
      if (run == 0) {
        whole = report;
      } else {
        for (const json& window : report["windows"]) whole["windows"].push_back(window);
      }
    }
    return whole.dump();
  };
  const auto comparison =
      CompareReports(repeated({10, 14, 9, 13, 11}), repeated({12, 9, 15, 10, 13}), {});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_EQ(comparison->blocks, "runs");
  EXPECT_EQ(comparison->before_blocks, 5u);
  EXPECT_EQ(comparison->verdict, ComparisonVerdict::kNoDifferenceShown);
}

TEST(Cases, T9_RunsOfDifferentSetUpsAreRefusedByName) {
  const std::string base = ReportOf(10, 1);
  const auto named = [&](const char* name, const std::string& other) {
    const absl::Status status = CompareReports(base, other, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    const auto forced = CompareReports(base, other, {.force = true});
    ASSERT_TRUE(forced.ok()) << forced.status();
    EXPECT_EQ(forced->mismatches.size(), 1u) << name;
  };
  LoadOptions options = RunOptions(100, absl::Seconds(10));
  options.lengths = "fixed:11";
  named("lengths", ReportOf(10, 1, options));
  options = RunOptions(50, absl::Seconds(10));
  named("rate", ReportOf(10, 1, options));
  options = RunOptions(100, absl::Seconds(11));
  named("duration_s", ReportOf(10, 1, options));
  options = RunOptions(100, absl::Seconds(10));
  options.connections = 2;
  named("asked", ReportOf(10, 1, options));
  options = RunOptions(100, absl::Seconds(10));
  options.poisson = true;
  named("arrivals", ReportOf(10, 1, options));
  json other = json::parse(base);
  other["setup"]["layers"] = {{{"name", "m0"}, {"dtype", "BF16"}}};
  named("layers", other.dump());
  other = json::parse(base);
  other["setup"]["generator"]["build"] = "Another";
  named("generator", other.dump());
}

TEST(CompareTest, SaysWhatIsTooShortToJudge) {
  const LoadOptions options = RunOptions(100, absl::Milliseconds(300));
  const auto comparison = CompareReports(ReportOf(10, 1, options), ReportOf(10, 2, options), {});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_EQ(comparison->verdict, ComparisonVerdict::kTooShort);
  EXPECT_THAT(comparison->weak, ::testing::Contains("p99"));
}

TEST(CompareTest, RefusesWhatIsNoReport) {
  const std::string good = ReportOf(10, 1);
  for (const std::string& wrong :
       {std::string(), std::string("{}"), std::string("[1]"), good.substr(0, good.size() / 2),
        std::string("{\"windows\":3}")}) {
    EXPECT_EQ(CompareReports(good, wrong, {.force = true}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << wrong.substr(0, 40);
  }
}

TEST(CompareTest, TheProgramPrintsItAndExitsWith3WhereItIsSlower) {
  const TempDir dir;
  dir.Write("a.json", ReportOf(10, 1));
  dir.Write("b.json", ReportOf(12, 2));
  const auto run = [&](std::vector<std::string> words) {
    std::ostringstream out, err;
    const int exit_code = RunHeadwiseLoad(words, {}, false, out, err);
    return std::make_pair(exit_code, out.str() + err.str());
  };
  const auto [slower, text] = run({"compare", dir.Path("a.json"), dir.Path("b.json")});
  EXPECT_EQ(slower, 3);
  for (const char* part : {"p99", "99 % interval", "windows", "verdict: SLOWER"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const auto [faster, json_text] =
      run({"compare", dir.Path("b.json"), dir.Path("a.json"), "--json", "-"});
  EXPECT_EQ(faster, 0);
  EXPECT_EQ(json::parse(json_text)["verdict"], "FASTER");
  EXPECT_EQ(run({"compare", dir.Path("a.json"), dir.Path("absent.json")}).first, 1);
  const auto [help, help_text] = run({"compare", "--help"});
  EXPECT_EQ(help, 0);
  EXPECT_THAT(help_text, HasSubstr("--tolerance"));
}

}  // namespace
}  // namespace headwise::client
