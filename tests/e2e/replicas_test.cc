// SPDX-License-Identifier: Apache-2.0
// Several replicas behind one client: one that dies costs no answer.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST(Replicas, OneKilledUnder1MBMessagesLosesNoRequest) {
  constexpr int kWidth = 256, kTokens = 1024, kCallers = 4;  // 1 MiB of x, and of y
  auto doomed = std::make_unique<ServerProcess>();
  const ServerProcess survivor;
  for (const ServerProcess* server :
       std::initializer_list<const ServerProcess*>{doomed.get(), &survivor}) {
    UploadRandomLayer(ConnectTo(*server).get(), "m0", kWidth, 4);
  }
  const auto client = client::Client::Connect(
      absl::StrCat(doomed->address(), ",", survivor.address()), {.timeout = absl::Seconds(30)});
  ASSERT_TRUE(client.ok()) << client.status();
  const v1::ForwardRequest request =
      MakeForwardRequest("m0", RandomFloats(kTokens * kWidth, 3), {kTokens});

  std::atomic<bool> stop = false;
  std::atomic<int> answered = 0, lost = 0;
  std::atomic<int64_t> slowest_us = 0;  // of the calls that were under way or began after the kill
  std::atomic<bool> killed = false;
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      while (!stop) {
        const Clock::time_point begin = Clock::now();
        const auto answer = (*client)->Forward(request);
        ++(answer.ok() ? answered : lost);
        EXPECT_TRUE(answer.ok()) << answer.status();
        const auto took_us = static_cast<int64_t>(1e6 * SecondsSince(begin));
        int64_t seen = slowest_us;
        while (killed && took_us > seen && !slowest_us.compare_exchange_weak(seen, took_us)) {
        }
      }
    });
  }
  const auto wait_for = [&](int count) {
    for (const auto begin = Clock::now(); answered < count && SecondsSince(begin) < 30;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  wait_for(100);
  EXPECT_GT(doomed->Metric("headwise_passes_total"), 10);  // both take part
  EXPECT_GT(survivor.Metric("headwise_passes_total"), 10);
  killed = true;
  doomed->Signal(SIGKILL);
  EXPECT_EQ(doomed->WaitForExit(10), 128 + SIGKILL);
  const int before = answered;
  wait_for(before + 100);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(lost, 0);
  EXPECT_GE(answered, before + 100);
  std::printf("a replica killed: %d answers, %d lost; slowest call after it %.0f ms\n",
              answered.load(), lost.load(), static_cast<double>(slowest_us) / 1000);
}

TEST(Replicas, OneThatDrainsIsLeftOutBeforeItRefuses) {
  auto draining = std::make_unique<ServerProcess>(
      std::vector<std::string>{"--lame-duck", "10s", "--repository", TestDataPath(".")});
  const ServerProcess other;
  for (const ServerProcess* server :
       std::initializer_list<const ServerProcess*>{draining.get(), &other}) {
    UploadRandomLayer(ConnectTo(*server).get(), "m0", 64, 4);
  }
  // No retries: the calls must not meet a refusal at all.
  const auto client = client::Client::Connect(
      absl::StrCat(draining->address(), ",", other.address()), {.retry = {.max_attempts = 1}});
  ASSERT_TRUE(client.ok()) << client.status();
  const v1::ForwardRequest request = MakeForwardRequest("m0", RandomFloats(64, 3), {1});
  const auto passes = [&] { return draining->Metric("headwise_passes_total"); };
  for (int i = 0; i < 1000 && passes() < 5; ++i) ASSERT_TRUE((*client)->Forward(request).ok());
  EXPECT_GE(passes(), 5);
  draining->Signal(SIGTERM);
  // Health Watch tells the client within a moment; from then on nothing goes there.
  double seen = -1;
  for (int i = 0; i < 100 && seen != passes(); ++i) {
    seen = passes();
    for (int call = 0; call < 20; ++call) ASSERT_TRUE((*client)->Forward(request).ok());
  }
  EXPECT_EQ(seen, passes());
}

}  // namespace
}  // namespace headwise
