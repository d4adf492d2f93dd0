// SPDX-License-Identifier: Apache-2.0
// More than the server can do: who gets what, and how soon the rest is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 256, kHeads = 4;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// A run of headwise-load against the server.
std::future<nlohmann::json> StartLoad(const ServerProcess& server, const std::string& layer,
                                      std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {layer, "--server", server.address(), "--json", "-"});
  return std::async(std::launch::async, [arguments] {
    const CommandResult result = RunProgram("headwise-load", arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? result.json() : nlohmann::json();
  });
}

double TokensPerSecond(const nlohmann::json& report) { return report["tokens_per_s"]; }

class Fairness : public ::testing::Test {
 protected:
  Fairness() {
    const auto client = ConnectTo(server_);
    for (const char* layer : {"a", "b"}) UploadRandomLayer(client.get(), layer, kWidth, kHeads);
  }
  // What `neighbour` gets beside `flood`, as part of its fair half of what it gets alone.
  double ShareOfHalf(const std::string& layer, const std::vector<std::string>& neighbour,
                     const std::string& flooded, std::vector<std::string> flood) {
    const double alone = TokensPerSecond(StartLoad(server_, layer, neighbour).get());
    flood.insert(flood.end(), {"--concurrency", "64", "--connections", "4", "--duration", "5s",
                               "--timeout", "20s"});
    auto flooding = StartLoad(server_, flooded, flood);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const double beside = TokensPerSecond(StartLoad(server_, layer, neighbour).get());
    flooding.get();
    RecordProperty("share_of_half", std::to_string(beside / (alone / 2)));
    return beside / (alone / 2);
  }

  ServerProcess server_;
};

TEST_F(Fairness, AClientThatFloodsLeavesItsNeighbourItsShare) {
  EXPECT_GE(ShareOfHalf("a",
                        {"--client-id", "quiet", "--concurrency", "8", "--lengths", "fixed:256",
                         "--duration", "3s"},
                        "a", {"--client-id", "loud", "--lengths", "fixed:256"}),
            0.8);
}

TEST_F(Fairness, AFloodedLayerLeavesItsNeighbourItsShare) {
  EXPECT_GE(ShareOfHalf("b",
                        {"--client-id", "one", "--concurrency", "8", "--lengths", "fixed:256",
                         "--duration", "3s"},
                        "a", {"--client-id", "one", "--lengths", "fixed:256"}),
            0.8);
}

TEST_F(Fairness, WorkCountsNotRequests) {
  // The flood's requests are sixteen times as long.
  EXPECT_GE(ShareOfHalf("a",
                        {"--client-id", "quiet", "--concurrency", "8", "--lengths", "fixed:128",
                         "--duration", "3s"},
                        "a", {"--client-id", "loud", "--lengths", "fixed:2048"}),
            0.8);
}

// The share of a histogram's observations that are at most `bound`, as the bucket's label has it.
double ShareWithin(const ServerProcess& server, const std::string& name, const std::string& bound) {
  const double all = server.Metric(name + "_count");
  return all == 0 ? 1.0 : server.Metric(name + "_bucket{le=\"" + bound + "\"}") / all;
}

TEST(Overload, AFullQueueRefusesAtOnceAndSaysWhy) {
  ServerProcess server({"--queue-tokens", "4096"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "a", kWidth, kHeads);
  auto load = StartLoad(
      server, "a",
      {"--concurrency", "200", "--connections", "4", "--lengths", "fixed:256", "--duration", "4s"});
  std::string refusal;
  const v1::ForwardRequest request = MakeForwardRequest("a", RandomFloats(512 * kWidth, 3), {512});
  const auto end = Clock::now() + std::chrono::seconds(3);
  while (Clock::now() < end) {
    const auto answer = client->Forward(request);
    if (!answer.ok()) refusal = std::string(answer.status().message());
  }
  const nlohmann::json report = load.get();
  EXPECT_GT(report["requests"]["ok"], 0);
  EXPECT_GT(report["requests"]["failed"], 0);
  EXPECT_EQ(report["errors"][0]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_THAT(refusal, HasSubstr("--queue-tokens"));
  EXPECT_THAT(refusal, HasSubstr("retry later"));
  EXPECT_GT(server.Metric("headwise_refusals_total"), 100.0);
  EXPECT_GE(ShareWithin(server, "headwise_refusal_seconds", "0.01"), 0.99);
  EXPECT_TRUE(client->Forward(request).ok());
}

TEST(Cases, S15_ThreeTimesTheCapacityIsRefusedAndForgotten) {
  constexpr int64_t kTokens = 1024;  // 1 MiB of x
  ServerProcess server({"--queue-tokens", "16384"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "a", kWidth, kHeads);
  const std::string lengths = "fixed:" + std::to_string(kTokens);
  const nlohmann::json calm =
      StartLoad(server, "a", {"--concurrency", "4", "--lengths", lengths, "--duration", "3s"})
          .get();
  const double capacity = calm["requests_per_s"];
  const int64_t base = server.ResidentBytes();
  const nlohmann::json storm =
      StartLoad(server, "a",
                {"--rate", std::to_string(3 * capacity), "--connections", "4", "--lengths", lengths,
                 "--duration", "10s", "--timeout", "20s"})
          .get();
  constexpr int64_t kMiB = 1 << 20;
  const int64_t queue_limit = 16384 / kTokens;
  EXPECT_LE(server.PeakResidentBytes(), base + queue_limit * 2 * kMiB + 64 * kMiB);
  EXPECT_GE(ShareWithin(server, "headwise_refusal_seconds", "0.05"), 0.99);
  EXPECT_GT(storm["requests"]["failed"], 0);
  EXPECT_GE(storm["requests_per_s"].get<double>(), 0.7 * capacity);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const nlohmann::json after = StartLoad(server, "a",
                                         {"--rate", std::to_string(0.5 * capacity), "--connections",
                                          "4", "--lengths", lengths, "--duration", "3s"})
                                   .get();
  EXPECT_EQ(after["requests"]["failed"], 0);
}

double Percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(part * static_cast<double>(values.size())))];
}

// Short calls, one after the other: seconds as the caller sees them, and of these what the server
// had them wait and compute. The rest is transport and, where all CPUs compute, the system's
// scheduler.
struct ShortCallSeconds {
  std::vector<double> all, in_engine;
};

// `count` of them, or as many as end before `stop` is ready.
ShortCallSeconds ShortCalls(client::Client* client, size_t count, const std::future<double>* stop) {
  const v1::ForwardRequest request = MakeForwardRequest("a", RandomFloats(10 * kWidth, 5), {10});
  ShortCallSeconds seconds;
  while (seconds.all.size() < count) {
    if (stop != nullptr && stop->wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      break;
    }
    const auto begin = Clock::now();
    const auto answer = client->Forward(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) break;
    seconds.all.push_back(Seconds(Clock::now() - begin));
    seconds.in_engine.push_back(1e-6 * (answer->queue_us() + answer->compute_us()));
  }
  return seconds;
}

// What short requests see beside a long one, and the long one beside them.
class UnequalWork : public ::testing::Test {
 protected:
  static constexpr int64_t kLong = 16384;
  struct Figures {
    double idle_p99_s = 0.0, beside_p90_s = 0.0, beside_p99_s = 0.0, engine_p99_s = 0.0;
    size_t short_calls = 0;
    double long_s = 0.0, alone_s = 0.0, theirs_s = 0.0;  // theirs: the short ones', one by one
    bool hold() const {
      return short_calls >= 100 && beside_p99_s <= 10.0 * idle_p99_s &&
             long_s <= 1.3 * (alone_s + theirs_s);
    }
  };

  UnequalWork() {
    UploadRandomLayer(client_.get(), "a", kWidth, kHeads);
    long_request_ = MakeForwardRequest("a", RandomFloats(kLong * kWidth, 4), {kLong});
    EXPECT_TRUE(client_->Forward(long_request_).ok());
    ShortCalls(client_.get(), 200, nullptr);
  }

  double LongCall() {
    const auto begin = Clock::now();
    const auto answer = client_->Forward(long_request_);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return Seconds(Clock::now() - begin);
  }

  Figures Measure() {
    Figures figures;
    figures.alone_s = LongCall();
    const std::vector<double> idle = ShortCalls(client_.get(), 1000, nullptr).all;
    figures.idle_p99_s = Percentile(idle, 0.99);
    const double passes = server_.Metric("headwise_passes_total");
    auto long_call = std::async(std::launch::async, [this] { return LongCall(); });
    server_.WaitForMetric("headwise_passes_total", passes + 1);
    const ShortCallSeconds beside = ShortCalls(client_.get(), 100'000, &long_call);
    figures.long_s = long_call.get();
    figures.beside_p90_s = Percentile(beside.all, 0.9);
    figures.beside_p99_s = Percentile(beside.all, 0.99);
    figures.engine_p99_s = Percentile(beside.in_engine, 0.99);
    figures.short_calls = beside.all.size();
    figures.theirs_s = static_cast<double>(beside.all.size()) * Percentile(idle, 0.5);
    return figures;
  }

  ServerProcess server_;
  std::unique_ptr<client::Client> client_ = ConnectTo(server_);
  v1::ForwardRequest long_request_;
};

TEST_F(UnequalWork, ShortRequestsGoOnBesideALongOne) {
  // Other programs on the machine may spoil a measurement or two.
  Figures figures;
  for (int attempt = 0; attempt < 8 && !figures.hold(); ++attempt) figures = Measure();
  RecordProperty("idle_p99_us", static_cast<int>(1e6 * figures.idle_p99_s));
  RecordProperty("beside_p90_us", static_cast<int>(1e6 * figures.beside_p90_s));
  RecordProperty("beside_p99_us", static_cast<int>(1e6 * figures.beside_p99_s));
  RecordProperty("engine_p99_us", static_cast<int>(1e6 * figures.engine_p99_s));
  RecordProperty("short_calls", static_cast<int>(figures.short_calls));
  RecordProperty("long_over_alone_and_theirs",
                 std::to_string(figures.long_s / (figures.alone_s + figures.theirs_s)));
  EXPECT_TRUE(figures.hold()) << figures.beside_p99_s << " s beside (p99), " << figures.engine_p99_s
                              << " s of it in the engine, " << figures.idle_p99_s
                              << " s idle; long " << figures.long_s << " s, alone "
                              << figures.alone_s << " s and theirs " << figures.theirs_s << " s";
}

}  // namespace
}  // namespace headwise
