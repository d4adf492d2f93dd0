// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

// Scores never exist beyond a tile: a forward of T 4096 takes far less than its T x S tensor.
TEST(Memory, ForwardAtT4096NeedsLessThanATenthOfItsScores) {
  constexpr int64_t kLength = 4096, kWidth = 576, kHeads = 9;
  ServerProcess server;
  const auto client = ConnectTo(server);
  LoadStored(client.get(), "layer", "data/smollm2", "12");
  const auto short_request = MakeForwardRequest("layer", RandomFloats(16 * kWidth, 1), {16});
  ASSERT_TRUE(client->Forward(short_request).ok());
  const int64_t before = server.PeakResidentBytes();
  const auto request = MakeForwardRequest("layer", RandomFloats(kLength * kWidth, 2), {kLength});
  ASSERT_TRUE(client->Forward(request).ok());
  const int64_t grown = server.PeakResidentBytes() - before;
  constexpr int64_t kScoreBytes = kHeads * kLength * kLength * 4;
  EXPECT_LT(grown, kScoreBytes / 10) << "score tensor " << kScoreBytes;
}

// A layer that comes and goes leaves nothing behind, while clients call it throughout.
TEST(Cases, S8_TwoHundredRoundsOfLoadAndUnloadKeepNothing) {
  constexpr int64_t kLength = 32, kWidth = 512, kHeads = 8;  // 4 MiB of weights
  ServerProcess server;
  const auto client = ConnectTo(server);
  const auto request = MakeForwardRequest("layer", RandomFloats(kLength * kWidth, 1), {kLength});
  std::atomic<bool> stop{false}, rest{false};
  std::atomic<int> bad{0};
  std::thread caller([&] {
    const auto own = ConnectTo(server);
    while (!stop) {
      if (rest) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      const auto answer = own->Forward(request);
      if (!answer.ok() && !absl::IsNotFound(answer.status())) ++bad;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  // What stays when nothing runs: a server at rest gives free memory back after two seconds.
  const auto resident_at_rest = [&] {
    rest = true;
    std::this_thread::sleep_for(std::chrono::seconds(4));
    const int64_t bytes = server.ResidentBytes();
    rest = false;
    return bytes;
  };
  int64_t after_5 = 0, after_20 = 0;
  for (int round = 1; round <= 200; ++round) {
    UploadRandomLayer(client.get(), "layer", kWidth, kHeads);
    EXPECT_TRUE(client->Forward(request).ok());
    EXPECT_TRUE(client->UnloadLayer("layer").ok());
    if (round == 5) after_5 = resident_at_rest();
    if (round == 20) after_20 = server.ResidentBytes();
  }
  const int64_t resident = resident_at_rest();
  stop = true;
  caller.join();
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(server.Metric("headwise_memory_bytes{kind=\"layers\"}"), 0.0);
  RecordProperty("resident_percent_of_round_5", static_cast<int>(100 * resident / after_5));
  EXPECT_LE(resident, after_20 + (int64_t{32} << 20));
  EXPECT_LE(static_cast<double>(resident), 1.05 * static_cast<double>(after_5))
      << resident << " bytes, after five rounds " << after_5;
}

TEST(Memory, ThreadsThatTheSystemRefusesEndTheStartWithTheReason) {
  // A thousand stacks don't fit.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limit{rlim_t{4} << 30, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const CommandResult result =
      RunProgram("headwise-server",
                 {"--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--threads", "1024"});
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("RESOURCE_EXHAUSTED: threads: must be as many as the system "
                                    "allows; was 1024"));
}

}  // namespace
}  // namespace headwise
