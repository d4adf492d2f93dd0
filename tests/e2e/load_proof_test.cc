// SPDX-License-Identifier: Apache-2.0
// headwise-load against a server whose every service time is known, and which stands still for half
// a second: its percentiles must be those that follow from the plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/stub_server.h"
#include "tests/e2e/process.h"

namespace headwise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kRate = 200, kSeconds = 5;
constexpr double kStallBegin = 2, kStallEnd = 2.5;  // seconds after the first call came

// Seconds of work of the i-th call: 40 to 160 ms, evenly spread in any stretch of calls.
double WorkOf(int i) {
  const double golden = i * 0.6180339887498949;
  return 0.04 + 0.12 * (golden - std::floor(golden));
}

// When a call that comes at `arrival` is done: nothing moves during the stall.
double DoneAt(double arrival, double work) {
  const double before = std::max(0.0, std::min(work, kStallBegin - arrival));
  if (before == work) return arrival + work;
  return std::max(arrival, kStallEnd) + work - (arrival < kStallBegin ? before : 0);
}

client::StubAnswers KnownServer(std::atomic<int>* calls) {
  client::StubAnswers answers;
  answers.forward = [calls, first = std::make_shared<std::atomic<int64_t>>(0)](
                        const v1::ForwardRequest&, v1::ForwardResponse*) {
    const int64_t now_ns = Clock::now().time_since_epoch().count();
    const int i = (*calls)++;
    int64_t unset = 0;
    first->compare_exchange_strong(unset, now_ns);
    const int64_t first_ns = *first;
    const double arrival = static_cast<double>(now_ns - first_ns) * 1e-9;
    const auto done_ns = static_cast<int64_t>(DoneAt(arrival, WorkOf(i)) * 1e9);
    std::this_thread::sleep_until(Clock::time_point(std::chrono::nanoseconds(first_ns + done_ns)));
    return absl::OkStatus();
  };
  return answers;
}

TEST(LoadProof, PercentilesAreWithin2PercentOfTheExactOnesWithAStall) {
  std::vector<double> exact_us;
  for (int i = 0; i < kRate * kSeconds; ++i) {
    exact_us.push_back(1e6 * (DoneAt(i / kRate, WorkOf(i)) - i / kRate));
  }
  std::sort(exact_us.begin(), exact_us.end());

  std::atomic<int> calls = 0;
  const auto server = client::StubServer::Start(KnownServer(&calls));
  const CommandResult result =
      RunProgram("headwise-load",
                 {"m0", "--server", server->target(), "--rate", absl::StrCat(kRate), "--duration",
                  absl::StrCat(kSeconds, "s"), "--lengths", "fixed:1", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = result.json();
  EXPECT_EQ(report["requests"]["ok"], exact_us.size());
  const std::pair<const char*, double> kShares[] = {
      {"p50", 0.5}, {"p75", 0.75}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}};
  for (const auto& [name, share] : kShares) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(exact_us.size())));
    const double exact = exact_us[rank - 1];
    const double measured = report["latency_us"][name];
    std::printf("%s: %.0f us measured, %.0f us exact, %+.2f %%\n", name, measured, exact,
                100 * (measured / exact - 1));
    EXPECT_NEAR(measured, exact, 0.02 * exact) << name;
  }
}

}  // namespace
}  // namespace headwise
