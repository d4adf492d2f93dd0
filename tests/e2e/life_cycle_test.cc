// SPDX-License-Identifier: Apache-2.0
// Starting, stopping, and changing layers under traffic.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <thread>

#include "headwise/v1/headwise.grpc.pb.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 64, kHeads = 4, kLength = 16;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

v1::ForwardRequest Request(const std::string& layer) {
  return MakeForwardRequest(layer, RandomFloats(kLength * kWidth, 7), {kLength});
}

// A layer whose forward of some thousand tokens takes a few 100 ms.
v1::ForwardRequest SlowRequest() {
  constexpr int64_t kTokens = 8000, kSlow = 8;
  return MakeForwardRequest("slow", RandomFloats(kTokens * kSlow, 3), {kTokens});
}

// Calls from several threads until it is ended; counts what came back.
class Traffic {
 public:
  Traffic(const ServerProcess& server, const v1::ForwardRequest& request, int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, &server, request] {
        const auto client = ConnectTo(server);
        while (!stop_) Count(client->Forward(request));
      });
    }
  }
  ~Traffic() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // By status, after Stop; and y by version.
  std::map<std::string, int64_t> codes;
  std::map<uint32_t, std::vector<float>> answers;
  int64_t mixed = 0;  // answers unlike another of the same version

 private:
  void Count(const absl::StatusOr<v1::ForwardResponse>& answer) {
    const std::lock_guard<std::mutex> lock(mu_);
    ++codes[absl::StatusCodeToString(answer.status().code())];
    if (!answer.ok()) return;
    std::vector<float> y = TensorFloats(*answer, "y");
    const auto [known, is_new] = answers.emplace(answer->layer_version(), y);
    if (!is_new && !SameBits(y, known->second)) ++mixed;
  }
  std::atomic<bool> stop_{false};
  std::mutex mu_;
  std::vector<std::thread> threads_;
};

TEST(LifeCycle, ReplacingUnderTrafficLosesNothingAndNeverMixesVersions) {
  ServerProcess server;
  const auto client = ConnectTo(server);
  LoadStored(client.get(), "m", "data/minilm", "0");
  const StoredInput input = ReadStoredInput("minilm", 0);
  const v1::ForwardRequest request = MakeForwardRequest("m", input.x, input.lengths);
  Traffic traffic(server, request, 4);
  for (int i = 1; i <= 100; ++i) {
    v1::LoadLayerRequest load;
    load.set_name("m");
    load.set_checkpoint("data/minilm");
    load.set_layer(i % 2 == 0 ? "0" : "3");
    load.set_replace(true);
    ASSERT_TRUE(client->LoadLayer(load).ok());
  }
  traffic.Stop();
  EXPECT_EQ(traffic.codes.size(), 1u);
  EXPECT_GT(traffic.codes["OK"], 20);
  EXPECT_EQ(traffic.mixed, 0);
  EXPECT_GT(traffic.answers.size(), 1u);
  v1::ForwardRequest pinned = request;
  pinned.set_expected_version(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(client->Forward(pinned).status()));
}

TEST(LifeCycle, UnloadingUnderTrafficAnswersOkOrNotFound) {
  ServerProcess server;
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "a", kWidth, kHeads);
  Traffic traffic(server, Request("a"), 4);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client->UnloadLayer("a").ok());
    UploadRandomLayer(client.get(), "a", kWidth, kHeads);
  }
  traffic.Stop();
  for (const auto& [code, count] : traffic.codes) {
    EXPECT_THAT(code, ::testing::AnyOf("OK", "NOT_FOUND")) << count;
  }
  EXPECT_GT(traffic.codes["OK"], 0);
}

TEST(LifeCycle, TheLameDuckServesThenEnds) {
  ServerProcess server({"--lame-duck", "1s"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "a", kWidth, kHeads);
  server.Signal(SIGTERM);
  const auto told = Clock::now();
  while (*client->Health("") == "SERVING" && Seconds(Clock::now() - told) < 5.0) {
  }
  EXPECT_LT(Seconds(Clock::now() - told), 0.5);
  EXPECT_TRUE(client->Forward(Request("a")).ok());
  EXPECT_EQ(server.WaitForExit(10.0), 0);
  EXPECT_GE(Seconds(Clock::now() - told), 1.0);
}

TEST(LifeCycle, ASecondSignalEndsAtOnce) {
  ServerProcess server({"--lame-duck", "30s", "--threads", "1", "--max-batch-requests", "1"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "slow", 8, 8);
  std::vector<std::future<absl::StatusOr<v1::ForwardResponse>>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return client->Forward(SlowRequest()); }));
  }
  ASSERT_TRUE(server.WaitForMetric("headwise_queued_tokens", 8000.0 * 6));
  server.Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto told = Clock::now();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(10.0), 0);
  EXPECT_LT(Seconds(Clock::now() - told), 2.0);
  for (auto& call : calls) {
    const auto answer = call.get();
    EXPECT_TRUE(answer.ok() || absl::IsUnavailable(answer.status())) << answer.status();
  }
}

TEST(LifeCycle, StrictStartEndsTheServerAndNamesTheLayer) {
  const CommandResult result = RunProgram(
      "headwise-server", {"--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--repository",
                          TestDataPath(""), "--load", "bad=nowhere:0", "--strict-start"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("bad"));
}

TEST(LifeCycle, AFileOfFlagsStartsTheServer) {
  const TempDir dir;
  const std::string path =
      dir.Write("server.textproto", "load: \"minilm\" \"=data/minilm:0\"\nmax_tokens: 4096\n");
  const ServerProcess server({"--load", "other=data/minilm:1", "--config", path});
  const nlohmann::json layers = server.HeadwiseJson({"list"});
  EXPECT_EQ(layers["layers"].size(), 2u) << layers;
  EXPECT_THAT(server.Headwise({"info"}).out, HasSubstr("4,096"));
}

TEST(LifeCycle, AWrongFileOfFlagsEndsTheStartAsWrongFlagsDo) {
  const TempDir dir;
  const std::string path = dir.Write("server.textproto", "demo: true\nthreads: 0\n");
  const CommandResult wrong = RunProgram("headwise-server", {"--config", path});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.err, "headwise-server: INVALID_ARGUMENT: --config: " + path +
                           ":2:1: --threads: must be an integer from 1 to 1024; was 0\n");
  const CommandResult missing = RunProgram("headwise-server", {"--config", dir.Path("none")});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(missing.err, "headwise-server: NOT_FOUND: --config: " + dir.Path("none") +
                             ": No such file or directory\n");
}

TEST(LifeCycle, WithoutItTheRestIsServedButNotReady) {
  ServerProcess server({"--load", "bad=nowhere:0", "--load", "good=data/minilm:0"});
  const auto client = ConnectTo(server);
  const StoredInput input = ReadStoredInput("minilm", 0);
  const v1::ForwardRequest request = MakeForwardRequest("good", input.x, input.lengths);
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!client->Forward(request).ok() && Clock::now() < end) {
  }
  EXPECT_TRUE(client->Forward(request).ok());
  EXPECT_EQ(*client->Health(""), "NOT_SERVING");
  EXPECT_EQ(*client->Health("layer/good"), "SERVING");
  EXPECT_THAT(server.Log(), HasSubstr("layer bad"));
}

TEST(Cases, S7_ReadyOnlyWhenEveryLayerAnswers) {
  ServerProcess server({"--load", "one=data/minilm:0", "--load", "two=data/smollm2:0"});
  const auto client = ConnectTo(server);
  const StoredInput input = ReadStoredInput("minilm", 0);
  const v1::ForwardRequest request = MakeForwardRequest("one", input.x, input.lengths);
  const auto end = Clock::now() + std::chrono::seconds(30);
  while (*client->Health("") != "SERVING" && Clock::now() < end) {
    EXPECT_NE(*client->Health("layer/two"), "UNKNOWN");
  }
  EXPECT_EQ(*client->Health(""), "SERVING");
  EXPECT_TRUE(client->Forward(request).ok());
  EXPECT_TRUE(absl::IsNotFound(client->Health("layer/none").status()));
  // A later load never takes readiness back.
  auto later = std::async(std::launch::async, [&] {
    const auto other = ConnectTo(server);
    LoadStored(other.get(), "three", "data/smollm2", "12");
  });
  while (later.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    EXPECT_EQ(*client->Health(""), "SERVING");
  }
}

int64_t CountThreads(const ServerProcess& server) {
  const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(server.pid()) +
                                                  "/task");
  return std::distance(std::filesystem::begin(tasks), std::filesystem::end(tasks));
}

TEST(Cases, S11_ManyCallsStartNoComputeThreads) {
  ServerProcess server({"--threads", "2"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "a", kWidth, kHeads);
  ASSERT_TRUE(client->Forward(Request("a")).ok());
  int64_t most = 0;
  {
    Traffic traffic(server, Request("a"), 64);
    const double before = server.Metric("headwise_requests_total");
    for (int i = 0; i < 40 || server.Metric("headwise_requests_total") < before + 1000; ++i) {
      most = std::max(most, CountThreads(server));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    traffic.Stop();
    EXPECT_EQ(traffic.codes.size(), 1u);
  }
  // gRPC's own (two pollers a core, some timers), HTTP's 4 and 2, signals, the loader: about 20.
  EXPECT_LE(most, 20 + 2 * 2 + 10);
  const int64_t after = CountThreads(server);
  EXPECT_LE(after, most);
}

TEST(Cases, S14_NamesThatCallersMakeUpGrowNoSeries) {
  ServerProcess server;
  const auto client = ConnectTo(server);
  const auto series = [&server] {
    const std::string text = server.MetricsText();
    EXPECT_LT(text.size(), size_t{1} << 20);
    return std::count(text.begin(), text.end(), '\n');
  };
  ASSERT_FALSE(client->Forward(Request("none")).ok());
  const auto before = series();
  const auto stub = v1::Headwise::NewStub(
      grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  for (int i = 0; i < 10000; ++i) {
    grpc::ClientContext context;
    context.AddMetadata("headwise-client", "client" + std::to_string(i));
    v1::ForwardRequest request;
    request.set_layer("none" + std::to_string(i));
    request.set_request_id("id" + std::to_string(i));
    request.mutable_input()->mutable_x();
    v1::ForwardResponse response;
    ASSERT_FALSE(stub->Forward(&context, request, &response).ok());
  }
  EXPECT_LE(series(), before + 5 + 20);  // one more histogram of a refusal's code at most
  for (int i = 0; i < 100; ++i) {
    UploadRandomLayer(client.get(), "layer" + std::to_string(i), 8, 2);
    ASSERT_TRUE(client->UnloadLayer("layer" + std::to_string(i)).ok());
  }
  EXPECT_LE(series(), before + 60);
}

}  // namespace
}  // namespace headwise
