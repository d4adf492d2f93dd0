// SPDX-License-Identifier: Apache-2.0
// Reported faults of other servers: callers that go away, and several servers behind one name.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "headwise/v1/headwise.grpc.pb.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 64, kHeads = 4, kLength = 512, kKeptLength = 2048;

v1::ForwardRequest Request(int64_t length) {
  return MakeForwardRequest("layer", RandomFloats(length * kWidth, 7), {length});
}

// A call on its way. Whoever waits for it and gRPC's callback share it.
struct StartedCall {
  grpc::ClientContext context;
  v1::ForwardResponse response;
  std::promise<grpc::Status> ended;
};

std::shared_ptr<StartedCall> Start(v1::Headwise::Stub* stub, const v1::ForwardRequest& request) {
  auto call = std::make_shared<StartedCall>();
  call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  stub->async()->Forward(&call->context, &request, &call->response,
                         [call](grpc::Status status) { call->ended.set_value(std::move(status)); });
  return call;
}

// Starts `count` calls one after the other, and cancels each after 0 to 5 ms. Every one of them
// must end, as anything but an error of its own.
void CallAndCancel(v1::Headwise::Stub* stub, int count, uint32_t seed) {
  const v1::ForwardRequest request = Request(kLength);
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i) {
    const std::shared_ptr<StartedCall> call = Start(stub, request);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    call->context.TryCancel();
    const grpc::StatusCode code = call->ended.get_future().get().error_code();
    EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::CANCELLED ||
                code == grpc::StatusCode::UNAVAILABLE)
        << code;
  }
}

class Cancellers {
 public:
  Cancellers(v1::Headwise::Stub* stub, int threads, int calls) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back(
          [stub, calls, i] { CallAndCancel(stub, calls, static_cast<uint32_t>(i)); });
    }
  }
  ~Cancellers() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

void WaitUntilNobodyCalls(const ServerProcess& server) {
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (server.Metric("headwise_live_calls") > 0.0 && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(server.Metric("headwise_live_calls"), 0.0);
}

TEST(Cases, S3_CancelledCallsAndAStopInTheMiddleLeaveNothing) {
  constexpr int kThreads = 20, kCancelled = 50, kKept = 100;
  ServerProcess server;
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "layer", kWidth, kHeads);
  const auto stub = v1::Headwise::NewStub(
      grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  const v1::ForwardRequest request = Request(kKeptLength);
  std::vector<std::shared_ptr<StartedCall>> kept;
  const auto keep = [&] {
    kept.clear();
    for (int i = 0; i < kKept; ++i) kept.push_back(Start(stub.get(), request));
  };
  const auto expect_answers = [&] {
    for (const std::shared_ptr<StartedCall>& call : kept) {
      const grpc::Status status = call->ended.get_future().get();
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
  };
  {
    const Cancellers cancellers(stub.get(), kThreads, kCancelled);
    keep();
  }
  expect_answers();
  WaitUntilNobodyCalls(server);
  const double answered = server.Metric("headwise_requests_total");
  keep();
  // Accepted is what lives or has been answered.
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (server.Metric("headwise_live_calls") + server.Metric("headwise_requests_total") <
             answered + kKept &&
         Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const Cancellers cancellers(stub.get(), kThreads, kCancelled);
    server.Signal(SIGTERM);
    expect_answers();
  }
  EXPECT_EQ(server.WaitForExit(30.0), 0) << server.Log();
}

TEST(Cases, S3_StartAndStopWithoutACall) {
  ServerProcess server;
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitForExit(30.0), 0) << server.Log();
}

// A name for both servers, as a DNS name with two addresses would be.
std::string NameOf(const ServerProcess& a, const ServerProcess& b) {
  return absl::StrCat("ipv4:", a.address(), ",", b.address());
}

double Calls(const ServerProcess& server) {
  return server.Metric("headwise_request_seconds_count");
}

TEST(Cases, S5_CallsGoRoundTheServersBehindAName) {
  const std::vector<std::string> arguments = {"--load", "m=data/minilm:0"};
  ServerProcess first(arguments);
  auto second = std::make_unique<ServerProcess>(arguments);
  const std::string second_address = second->address();
  const auto loaded_by = Clock::now() + std::chrono::seconds(30);
  for (const ServerProcess* server : {&first, second.get()}) {
    while (server->Metric("headwise_layers") < 1.0 && Clock::now() < loaded_by) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_EQ(server->Metric("headwise_layers"), 1.0);
  }
  const auto client = *client::Client::Connect(NameOf(first, *second), {});
  const v1::ForwardRequest request = MakeForwardRequest("m", RandomFloats(4 * 384, 3), {4});
  const auto call = [&](int count) {
    int failed = 0;
    for (int i = 0; i < count; ++i) failed += client->Forward(request).ok() ? 0 : 1;
    return failed;
  };
  // Until both connections stand one of them gets everything.
  const auto end = Clock::now() + std::chrono::seconds(10);
  while ((Calls(first) == 0.0 || Calls(*second) == 0.0) && Clock::now() < end) call(2);
  const double before = Calls(first);
  EXPECT_EQ(call(1000), 0);
  EXPECT_NEAR(Calls(first) - before, 500.0, 50.0);
  // One stops: only what it had accepted may suffer, and it ends that.
  second->Signal(SIGTERM);
  EXPECT_EQ(second->WaitForExit(30.0), 0);
  EXPECT_LE(call(200), 1);
  // It comes back at the same address, and gets its share.
  std::vector<std::string> again = arguments;
  again.insert(again.end(), {"--listen", second_address});
  second = std::make_unique<ServerProcess>(again);
  const auto back = Clock::now() + std::chrono::seconds(30);
  double share = 0.0;
  while (share < 0.4 && Clock::now() < back) {
    const double had = Calls(*second);
    EXPECT_LE(call(100), 1);
    share = (Calls(*second) - had) / 100.0;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_GE(share, 0.4);
}

}  // namespace
}  // namespace headwise
