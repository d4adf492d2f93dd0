// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_report.h"

#include <algorithm>
#include <string>
#include <vector>

#include "client/load/load_json.h"
#include "client/load/load_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/simulated_transport.h"

namespace headwise::client {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<std::string> Keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

LoadReport HundredASecond(absl::Duration duration) {
  return Simulate(RunOptions(100, duration), [](const Call&, int64_t) { return Served{800'000}; });
}

TEST(ReportJsonTest, HasTheShapeOfTheInterface) {
  const std::string text = ReportJson(HundredASecond(absl::Seconds(10)));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(Keys(nlohmann::ordered_json::parse(text)),
              ::testing::ElementsAre("layer", "method", "loop", "rate", "concurrency", "arrivals",
                                     "lengths", "duration_s", "seed", "connections", "requests",
                                     "errors", "requests_per_s", "tokens_per_s", "latency_us",
                                     "service_us", "send_delay_us", "queue_us", "compute_us",
                                     "generator", "verdict", "setup", "windows"));
  const json report = json::parse(text);
  EXPECT_EQ(report["layer"], "m0");
  EXPECT_EQ(report["method"], "FORWARD");
  EXPECT_EQ(report["loop"], "OPEN");
  EXPECT_EQ(report["rate"], 100.0);
  EXPECT_EQ(report["concurrency"], 0);
  EXPECT_EQ(report["arrivals"], "CONSTANT");
  EXPECT_EQ(report["connections"], json({{"asked", 1}, {"measured", 1}}));
  EXPECT_EQ(report["requests"],
            json({{"planned", 1000}, {"sent", 1000}, {"ok", 1000}, {"failed", 0}}));
  EXPECT_EQ(report["errors"], json::array());
  EXPECT_EQ(report["requests_per_s"], 100.0);
  EXPECT_EQ(report["tokens_per_s"], 1000.0);
  EXPECT_EQ(report["latency_us"], json({{"count", 1000},
                                        {"mean", 800.0},
                                        {"p50", 800},
                                        {"p75", 800},
                                        {"p90", 800},
                                        {"p95", 800},
                                        {"p99", 800},
                                        {"max", 800}}));
  EXPECT_EQ(report["queue_us"], json({{"count", 0}}));
  EXPECT_EQ(report["generator"], json({{"cpu_share", 0.0}, {"cores", 0.0}, {"limited", false}}));
  EXPECT_EQ(report["verdict"], "OK");
}

TEST(ReportJsonTest, LeavesOutPercentilesThatTheSampleDoesNotSupport) {
  // n >= 5 / (1 - p): 10, 20, 50, 100 and 500.
  const struct {
    double seconds;
    std::vector<std::string> keys;
  } kCases[] = {{0.09, {"count", "mean", "max"}},
                {0.10, {"count", "mean", "p50", "max"}},
                {0.20, {"count", "mean", "p50", "p75", "max"}},
                {0.49, {"count", "mean", "p50", "p75", "max"}},
                {0.50, {"count", "mean", "p50", "p75", "p90", "max"}},
                {1.00, {"count", "mean", "p50", "p75", "p90", "p95", "max"}},
                {4.99, {"count", "mean", "p50", "p75", "p90", "p95", "max"}},
                {5.00, {"count", "mean", "p50", "p75", "p90", "p95", "p99", "max"}}};
  for (const auto& [seconds, keys] : kCases) {
    const auto report = nlohmann::ordered_json::parse(
        ReportJson(HundredASecond(absl::Milliseconds(static_cast<int>(seconds * 1000 + 0.5)))));
    EXPECT_EQ(Keys(report["latency_us"]), keys) << seconds;
  }
}

TEST(ReportJsonTest, ShowsFailuresAndWarmUp) {
  LoadOptions options = RunOptions(100, absl::Seconds(1));
  options.warmup = 3;
  const LoadReport report = Simulate(options, [](const Call& call, int64_t) {
    return call.id % 2 == 0 ? Served{kMillisecond}
                            : Served{kMillisecond, absl::StatusCode::kUnavailable};
  });
  const json parsed = json::parse(ReportJson(report));
  EXPECT_EQ(parsed["requests"]["warmup"], 3);
  EXPECT_EQ(parsed["requests"]["planned"], 100);
  EXPECT_EQ(parsed["errors"], json::array({{{"code", "UNAVAILABLE"}, {"count", 50}}}));
  EXPECT_EQ(parsed["all_latency_us"]["count"], 100);
  EXPECT_EQ(parsed["latency_us"]["count"], 50);
}

TEST(ReportJsonTest, TellsStepsLayersAndServersApart) {
  LoadOptions options = RunOptions(100, absl::Seconds(4));
  options.schedule = "100:2s,100-300:2s";
  options.rate = 150;
  options.layer = "m0,m1";
  options.layers = {"m0", "m1"};
  options.targets = {"a:1", "b:1", "c:1"};
  options.connections = 3;
  options.mix = Mix::kMix;
  const json report = json::parse(ReportJson(Simulate(options, [](const Call& call, int64_t sent) {
    const int64_t ms = call.layer == 1 ? 8 : sent >= 2 * kSecond ? 4 : 2;
    return Served{ms * kMillisecond};
  })));
  ASSERT_EQ(report["steps"].size(), 2u);
  EXPECT_EQ(report["steps"][0]["name"], "100/s for 2 s");
  EXPECT_EQ(report["steps"][0]["ok"], 200);
  EXPECT_EQ(report["steps"][1]["name"], "100-300/s for 2 s");
  EXPECT_EQ(report["steps"][1]["ok"], 400);
  ASSERT_EQ(report["layers"].size(), 2u);
  EXPECT_EQ(report["layers"][1]["name"], "m1");
  EXPECT_EQ(report["layers"][1]["ok"], 300);
  EXPECT_EQ(report["layers"][1]["latency_us"]["p50"], 8000);
  ASSERT_EQ(report["servers"].size(), 3u);
  EXPECT_EQ(report["servers"][2]["name"], "c:1");
  EXPECT_EQ(report["servers"][2]["ok"], 200);
  EXPECT_EQ(report["methods"].size(), 2u);
  EXPECT_EQ(report["setup"]["schedule"], options.schedule);
}

TEST(ReportJsonTest, WindowsAddUpToTheWhole) {
  const json report = json::parse(ReportJson(HundredASecond(absl::Seconds(10))));
  uint64_t ok = 0, counted = 0;
  for (const json& window : report["windows"]) {
    ok += window["ok"].get<uint64_t>();
    for (const json& bucket : window["latency_us"]) counted += bucket[1].get<uint64_t>();
  }
  EXPECT_EQ(ok, 1000u);
  EXPECT_EQ(counted, 1000u);
  EXPECT_EQ(report["windows"].size(), 40u);
}

TEST(LoadPageTest, HoldsEveryPartAndNothingFromElsewhere) {
  LoadOptions options = RunOptions(100, absl::Seconds(10));
  options.layer = "<m0>";
  options.thresholds = *ParseThresholds("threshold", "p99<5ms");
  const std::string page = LoadPage(Simulate(options, [](const Call& call, int64_t) {
    if (call.id % 10 == 9) return Served{kMillisecond, absl::StatusCode::kUnavailable};
    return Served{static_cast<int64_t>(call.id % 7 + 1) * kMillisecond};
  }));
  for (const char* part :
       {"id=\"spectrum\"", "id=\"throughput\"", "id=\"latency\"", "id=\"split\"",
        "id=\"percentiles\"", "id=\"errors\"", "id=\"thresholds\"", "UNAVAILABLE", "99 %",
        "p99&lt;5ms", "Load test of &lt;m0&gt;", "missed"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  for (const char* banned : {"<m0>", "http", "<script", "nan", "inf\""}) {
    EXPECT_THAT(page, ::testing::Not(HasSubstr(banned)));
  }
}

TEST(LoadPageTest, ShowsARunInWhichNothingSucceeded) {
  const std::string page =
      LoadPage(Simulate(RunOptions(100, absl::Seconds(1)), [](const Call&, int64_t) {
        return Served{kMillisecond, absl::StatusCode::kUnavailable};
      }));
  EXPECT_THAT(page, HasSubstr("Verdict: FAIL"));
  EXPECT_THAT(page, HasSubstr("100.00 %"));
}

TEST(ReportTextTest, SaysWhatMatters) {
  const std::string text = ReportText(HundredASecond(absl::Seconds(10)), {});
  for (const char* part : {"open loop at 100 calls/s", "connections: 1 asked, 1 measured",
                           "1000 ok", "100.0 requests/s", "latency", "send delay", "verdict OK"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace headwise::client
