// SPDX-License-Identifier: Apache-2.0
// Who asks, what it may hold, and what a refusal says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/base/refusal.h"
#include "google/rpc/status.pb.h"
#include "server/caller.h"
#include "server/logging.h"
#include "server/request_memory.h"
#include "server/status.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

TEST(Caller, ThePeersAddressWithoutItsPort) {
  EXPECT_EQ(HostOfPeer("ipv4:127.0.0.1:4711"), "127.0.0.1");
  EXPECT_EQ(HostOfPeer("ipv6:%5B::1%5D:4711"), "[::1]");
  EXPECT_EQ(HostOfPeer("unix:/run/h.sock"), "unix");
  EXPECT_EQ(HostOfPeer("unknown"), "in-process");
}

TEST(RequestMemoryTest, IsBoundedAndGivenBack) {
  RequestMemory memory(100);
  {
    RequestMemory::Hold first, second;
    ASSERT_TRUE(first.Take(&memory, 60).ok());
    const absl::Status refused = second.Take(&memory, 41);
    EXPECT_TRUE(absl::IsResourceExhausted(refused));
    EXPECT_EQ(RefusalOf(refused), "REQUEST_MEMORY");
    EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 100 bytes"));
    EXPECT_TRUE(IsRetryable(refused));
    const absl::Status never = second.Take(&memory, 101);
    EXPECT_EQ(RefusalOf(never), "LIMIT_EXCEEDED");
    EXPECT_FALSE(IsRetryable(never));
    ASSERT_TRUE(first.Take(&memory, 40).ok());
    EXPECT_EQ(memory.used_bytes(), 100);
    first.Settle(70);  // less came than was reserved
    EXPECT_EQ(memory.used_bytes(), 70);
  }
  EXPECT_EQ(memory.used_bytes(), 0);
}

TEST(Refusals, ReasonsReachTheCaller) {
  const grpc::Status status = ToGrpcStatus(
      Refuse(Refusal::kClientFull, "client: at most 3 requests may wait, retry later; was 4"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "CLIENT_LIMIT");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
}

TEST(Refusals, TheDelayIsHalfTheBacklogWithinBounds) {
  EXPECT_EQ(RetryDelay(absl::Seconds(3)), absl::Milliseconds(1500));
  EXPECT_EQ(RetryDelay(absl::ZeroDuration()), absl::Milliseconds(10));
  EXPECT_EQ(RetryDelay(absl::Hours(1)), absl::Seconds(30));
  google::rpc::Status details;
  const grpc::Status status =
      ToGrpcStatus(absl::UnavailableError("server: is draining"), absl::Milliseconds(1250));
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 250'000'000);
}

class AdmissionRpc : public ServerFixture {};

TEST_F(AdmissionRpc, ClientAndPriorityReachTheEngine) {
  StartReady();
  grpc::ClientContext context;
  context.AddMetadata("headwise-client", "alice");
  v1::ForwardRequest request = ToyForward(1);
  request.set_priority(7);
  v1::ForwardResponse response;
  ASSERT_TRUE(stub_->Forward(&context, request, &response).ok());
  EXPECT_EQ(engine_.last_context().client, "alice");
  EXPECT_EQ(engine_.last_context().priority, 7);
  const auto stub = v1::Headwise::NewStub(TcpChannel());
  grpc::ClientContext plain;
  ASSERT_TRUE(stub->Forward(&plain, ToyForward(1), &response).ok());
  EXPECT_EQ(engine_.last_context().client, "127.0.0.1");
}

TEST_F(AdmissionRpc, RequestsInMemoryAreBounded) {
  ServerOptions options = TestOptions();
  options.request_budget_bytes = 1 << 20;
  StartReady(options);
  engine_.Hold();
  grpc::Status first;
  std::thread caller([&] {
    grpc::ClientContext context;
    v1::ForwardResponse response;
    first = stub_->Forward(&context, ToyForward(25'000), &response);  // twice 400,000 bytes
  });
  engine_.AwaitWaiting(1);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const grpc::Status second = stub_->Forward(&context, ToyForward(25'000), &response);
  EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(second.error_message(), HasSubstr("--request-budget-bytes"));
  engine_.Release();
  caller.join();
  EXPECT_TRUE(first.ok()) << first.error_message();
}

TEST_F(AdmissionRpc, TheBudgetHoldsTheAnswerToo) {
  ServerOptions options = TestOptions();
  options.request_budget_bytes = 1'000'000;  // a message of 480 KB and its answer, nearly twice
  StartReady(options);
  engine_.Hold();
  grpc::Status first;
  std::thread caller([&] {
    grpc::ClientContext context;
    v1::ForwardResponse response;
    first = stub_->Forward(&context, ToyForward(30'000), &response);
  });
  engine_.AwaitWaiting(1);
  EXPECT_GE(server_->request_bytes(), 2 * 480'000);
  grpc::ClientContext context;
  v1::ForwardResponse response;
  const grpc::Status second = stub_->Forward(&context, ToyForward(2'000), &response);
  EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  engine_.Release();
  caller.join();
  EXPECT_TRUE(first.ok()) << first.error_message();
}

TEST_F(AdmissionRpc, TooManyHeaderBytesEndTheCall) {
  ServerOptions options = TestOptions();
  options.max_header_bytes = 2048;
  StartReady(options);
  const auto stub = v1::Headwise::NewStub(TcpChannel());
  grpc::ClientContext large;
  large.AddMetadata("filler", std::string(4000, 'x'));
  v1::ForwardResponse response;
  EXPECT_EQ(stub->Forward(&large, ToyForward(1), &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // gRPC may close the connection with the call, even as the next one starts on it: that one is
  // UNAVAILABLE, and a new connection serves.
  grpc::Status next(grpc::StatusCode::UNAVAILABLE, "");
  for (int attempt = 0; attempt < 5 && next.error_code() == grpc::StatusCode::UNAVAILABLE;
       ++attempt) {
    grpc::ClientContext small;
    small.set_wait_for_ready(true);
    next = stub->Forward(&small, ToyForward(1), &response);
  }
  EXPECT_TRUE(next.ok()) << next.error_message();
}

TEST(LogLevels, NamesAndSteps) {
  EXPECT_EQ(ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_FALSE(ParseLogLevel("loud").has_value());
  SetLogLevel(LogLevel::kInfo);
  StepLogLevel(/*more=*/true);
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kDebug);
  StepLogLevel(/*more=*/true);
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kDebug);
  for (int i = 0; i < 5; ++i) StepLogLevel(/*more=*/false);
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kError);
  SetLogLevel(LogLevel::kInfo);
}

}  // namespace
}  // namespace headwise
