// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/call_tracker.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

// Calls of their own threads that end in the order of their index.
class DrainRpc : public ServerFixture {
 protected:
  ~DrainRpc() override {
    for (std::thread& thread : threads_) thread.join();
  }

  // Starts `count` forwards, which wait in the engine, over TCP.
  void StartCalls(size_t count) {
    channel_ = TcpChannel();
    statuses_.resize(count);
    engine_.Hold();
    for (size_t i = 0; i < count; ++i) {
      threads_.emplace_back([this, i] {
        grpc::ClientContext context;
        v1::ForwardResponse response;
        statuses_[i] = v1::Headwise::NewStub(channel_)->Forward(&context, ToyForward(2), &response);
      });
    }
    engine_.AwaitWaiting(count);
  }

  void JoinCalls() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::vector<std::thread> threads_;
  std::vector<grpc::Status> statuses_;
};

TEST_F(DrainRpc, AcceptedCallsEndAndNewOnesAreUnavailable) {
  StartReady();
  StartCalls(20);
  server_->BeginDrain();
  std::thread stopper([this] { server_->Wait(); });
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const grpc::Status late =
      v1::Headwise::NewStub(channel_)->Forward(&context, ToyForward(1), &response);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(late.error_message(), HasSubstr("draining"));
  grpc::ClientContext health_context;
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(
      grpc::health::v1::Health::NewStub(channel_)->Check(&health_context, {}, &health).ok());
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  engine_.Release();
  stopper.join();
  JoinCalls();
  for (const grpc::Status& status : statuses_) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(DrainRpc, PastGraceTheRestEndsUnavailable) {
  ServerOptions options = TestOptions();
  options.grace = absl::Milliseconds(20);
  StartReady(options);
  StartCalls(3);
  server_->BeginDrain();
  server_->Wait();
  JoinCalls();
  for (const grpc::Status& status : statuses_) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("--grace"));
  }
}

TEST_F(DrainRpc, HurryGivesTheGraceUp) {
  StartReady();  // 30 s of grace
  StartCalls(2);
  server_->BeginDrain();
  server_->Hurry();
  server_->Wait();
  JoinCalls();
  for (const grpc::Status& status : statuses_) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST_F(DrainRpc, ALameDuckStillServes) {
  ServerOptions options = TestOptions();
  options.lame_duck = absl::Seconds(30);
  StartReady(options);
  const auto stub = v1::Headwise::NewStub(TcpChannel());
  server_->BeginDrain();
  std::thread stopper([this] { server_->Wait(); });
  grpc::ClientContext health_context, context;
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(health_->Check(&health_context, {}, &health).ok());
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  v1::ForwardResponse response;
  EXPECT_TRUE(stub->Forward(&context, ToyForward(1), &response).ok());
  server_->Hurry();  // a second signal gives the 30 s up
  stopper.join();
}

TEST_F(DrainRpc, TheLameDuckEndsByItself) {
  ServerOptions options = TestOptions();
  options.lame_duck = absl::Milliseconds(20);
  StartReady(options);
  server_->BeginDrain();
  server_->Wait();
  EXPECT_EQ(server_->grpc_server(), nullptr);
}

TEST_F(DrainRpc, TwoServersCantShareAPort) {
  StartReady();
  ServerOptions second = TestOptions();
  second.listen = server_->Banner().substr(std::string("listening ").size());
  const absl::Status status = Server::Start(second, &engine_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(second.listen));
}

TEST_F(DrainRpc, AListenAddressIsHostAndPort) {
  for (const char* listen : {"8500", "127.0.0.1", ":8500", "127.0.0.1:99999", "::1:8500"}) {
    ServerOptions options = TestOptions();
    options.listen = listen;
    EXPECT_EQ(Server::Start(options, &engine_).status().code(), absl::StatusCode::kInvalidArgument)
        << listen;
  }
}

class Recorder : public LiveCall {
 public:
  void Abort() override { aborted = true; }
  bool aborted = false;
};

TEST(CallTracker, WaitsForWhatItKnows) {
  CallTracker tracker;
  Recorder first;
  Recorder second;
  ASSERT_TRUE(tracker.Enter(&first));
  tracker.StartDraining();
  EXPECT_FALSE(tracker.Enter(&second));
  EXPECT_FALSE(tracker.WaitIdle(std::chrono::steady_clock::now()));
  tracker.Hurry();
  EXPECT_FALSE(tracker.WaitIdle(CallTracker::TimePoint::max()));
  tracker.AbortAll();
  EXPECT_TRUE(first.aborted);
  EXPECT_FALSE(second.aborted);
  std::thread leaver([&] { tracker.Leave(&first); });
  EXPECT_TRUE(tracker.WaitIdle(CallTracker::TimePoint::max()));
  leaver.join();
}

}  // namespace
}  // namespace headwise
