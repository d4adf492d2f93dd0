// SPDX-License-Identifier: Apache-2.0
// Reported faults of other servers: message sizes, deadlines, shutdown, bad neighbours.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "headwise/v1/headwise.grpc.pb.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/compare.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A call by the plain generated stub on a channel of its own: what any gRPC client does.
struct PlainCall {
  grpc::Status status;
  v1::ForwardResponse response;
};

std::unique_ptr<v1::Headwise::Stub> PlainStub(const ServerProcess& server, int number = 0) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("headwise.test.channel", number);
  return v1::Headwise::NewStub(
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments));
}

PlainCall Call(v1::Headwise::Stub* stub, const v1::ForwardRequest& request, double timeout_s,
               grpc::ClientContext* context) {
  PlainCall call;
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::microseconds(static_cast<int64_t>(timeout_s * 1e6)));
  call.status = stub->Forward(context, request, &call.response);
  return call;
}

PlainCall Call(v1::Headwise::Stub* stub, const v1::ForwardRequest& request,
               double timeout_s = 60.0) {
  grpc::ClientContext context;
  return Call(stub, request, timeout_s, &context);
}

// A layer whose forward of some thousand tokens takes a few 100 ms on one core while its message is
// small: heads of width 1, where the softmax is all the work.
constexpr int64_t kSlowWidth = 8, kSlowHeads = 8;

std::vector<float> Numbers(int64_t count) { return RandomFloats(count, 3); }

v1::ForwardRequest SlowRequest(int64_t length) {
  return MakeForwardRequest("slow", Numbers(length * kSlowWidth), {length});
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

TEST(Cases, S1_LargeMessagesPassByDefaultAndTheLimitIsNamed) {
  constexpr int64_t kBatch = 8, kLength = 512, kWidth = 768;
  ServerProcess server({"--max-message-bytes", "20000000"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "wide", kWidth, 12);
  const v1::ForwardRequest request = MakeForwardRequest("wide", Numbers(kBatch * kLength * kWidth),
                                                        std::vector<int64_t>(kBatch, kLength));
  const auto ours = client->Forward(request);
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(ours->tensors(0).data().size(), size_t{12582912});
  // A plain client can send but not receive: its own 4 MB default stands.
  const auto stub = PlainStub(server);
  const PlainCall plain = Call(stub.get(), request);
  EXPECT_EQ(plain.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(plain.status.error_message(), HasSubstr("4194304"));
  const auto over = client->Forward(MakeForwardRequest(
      "wide", Numbers(2 * kBatch * kLength * kWidth), std::vector<int64_t>(2 * kBatch, kLength)));
  EXPECT_TRUE(absl::IsResourceExhausted(over.status())) << over.status();
  EXPECT_THAT(std::string(over.status().message()), HasSubstr("20000000"));
  EXPECT_TRUE(client->Forward(request).ok());
}

// A server with one worker and no batching, and a request whose forward takes a few 100 ms there.
class OneWorker {
 public:
  OneWorker() : server_({"--threads", "1", "--max-batch-requests", "1"}) {
    const auto client = ConnectTo(server_);
    UploadRandomLayer(client.get(), "slow", kSlowWidth, kSlowHeads);
    // As long as it takes: a sanitizer is some ten times slower.
    for (int64_t length = 2000; length <= 8000 && forward_s_ < 0.4; length *= 2) {
      request_ = SlowRequest(length);
      EXPECT_TRUE(client->Forward(request_).ok());  // the first call warms connection and pages
      const auto start = Clock::now();
      EXPECT_TRUE(client->Forward(request_).ok());
      forward_s_ = Seconds(Clock::now() - start);
    }
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) {
      const auto start = Clock::now();
      EXPECT_TRUE(client->Forward(request_).ok());
      seconds.push_back(Seconds(Clock::now() - start));
    }
    std::nth_element(seconds.begin(), seconds.begin() + 3, seconds.end());
    forward_s_ = seconds[3];
  }

  const ServerProcess& server() const { return server_; }
  const v1::ForwardRequest& request() const { return request_; }
  double forward_s() const { return forward_s_; }  // c of the case

 private:
  ServerProcess server_;
  v1::ForwardRequest request_;
  double forward_s_ = 0.0;
};

// Sends 50 at once with a deadline of `timeout` times c, and a late one at 2.5 c with a deadline of
// 3 c; then looks at what the server ran. With `cancel` all are called off at 1.5 c.
void ExpectDeadWorkIsDropped(double timeout, bool cancel) {
  constexpr size_t kCalls = 50;
  OneWorker worker;
  const double c = worker.forward_s();
  const double passes = worker.server().Metric("headwise_passes_total");
  const double dropped = worker.server().Metric("headwise_dropped_total");
  const auto stub = PlainStub(worker.server());
  std::vector<grpc::ClientContext> contexts(kCalls);
  std::vector<std::future<grpc::Status>> calls;
  const auto start = Clock::now();
  const auto wait_until = [&](double multiple) {
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(multiple * c)));
  };
  for (grpc::ClientContext& context : contexts) {
    calls.push_back(std::async(std::launch::async, [&] {
      return Call(stub.get(), worker.request(), timeout * c, &context).status;
    }));
  }
  wait_until(1.5);
  for (grpc::ClientContext& context : contexts) {
    if (cancel) context.TryCancel();
  }
  wait_until(2.5);
  const auto late_start = Clock::now();
  const PlainCall late = Call(stub.get(), worker.request(), 3.0 * c);
  EXPECT_TRUE(late.status.ok()) << late.status.error_message();
  EXPECT_LT(Seconds(Clock::now() - late_start), 2.0 * c);
  int ok = 0;
  for (auto& call : calls) {
    const grpc::Status status = call.get();
    ok += status.ok() ? 1 : 0;
    EXPECT_THAT(
        status.error_code(),
        ::testing::AnyOf(grpc::StatusCode::OK, cancel ? grpc::StatusCode::CANCELLED
                                                      : grpc::StatusCode::DEADLINE_EXCEEDED));
  }
  EXPECT_LE(ok, 3);
  EXPECT_LE(worker.server().Metric("headwise_passes_total") - passes, 4.0);  // the late one too
  EXPECT_GE(worker.server().Metric("headwise_dropped_total") - dropped, 47.0);
}

TEST(Cases, S2_ExpiredRequestsNeverRun) { ExpectDeadWorkIsDropped(1.5, /*cancel=*/false); }

TEST(Cases, S2_CancelledRequestsNeverRun) { ExpectDeadWorkIsDropped(100.0, /*cancel=*/true); }

TEST(Cases, S6_SigtermEndsWhatWasAcceptedAndRefusesTheRest) {
  constexpr int kCalls = 20;
  ServerProcess server;
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "slow", kSlowWidth, kSlowHeads);
  const v1::ForwardRequest request = SlowRequest(3000);
  std::vector<std::future<absl::StatusOr<v1::ForwardResponse>>> calls;
  const double before = server.Metric("headwise_pass_requests_total");
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return client->Forward(request); }));
  }
  // All are accepted: run, running or waiting.
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (server.Metric("headwise_pass_requests_total") - before +
                 server.Metric("headwise_queued_tokens") / 3000.0 <
             kCalls &&
         Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  server.Signal(SIGTERM);
  const auto told = Clock::now();
  absl::StatusOr<std::string> health = std::string("SERVING");
  while (health.ok() && *health == "SERVING" && Seconds(Clock::now() - told) < 5.0) {
    health = client->Health("");
  }
  ASSERT_TRUE(health.ok()) << health.status();
  EXPECT_EQ(*health, "NOT_SERVING");
  const auto refused = client->Forward(request);
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  for (auto& call : calls) {
    const auto answer = call.get();
    EXPECT_TRUE(answer.ok()) << answer.status();
  }
  EXPECT_EQ(server.WaitForExit(30.0), 0) << server.Log();
}

TEST(Cases, S6_PastTheGraceTimeTheRestEndUnavailable) {
  ServerProcess server({"--grace", "200ms", "--threads", "1", "--max-batch-requests", "1"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "slow", kSlowWidth, kSlowHeads);
  const v1::ForwardRequest request = SlowRequest(8000);
  std::vector<std::future<absl::StatusOr<v1::ForwardResponse>>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return client->Forward(request); }));
  }
  ASSERT_TRUE(server.WaitForMetric("headwise_queued_tokens", 8000.0 * 6));
  server.Signal(SIGTERM);
  int unavailable = 0;
  for (auto& call : calls) {
    const auto answer = call.get();
    if (answer.ok()) continue;
    EXPECT_TRUE(absl::IsUnavailable(answer.status())) << answer.status();
    ++unavailable;
  }
  EXPECT_GT(unavailable, 0);
  EXPECT_EQ(server.WaitForExit(30.0), 0) << server.Log();
}

TEST(Cases, S12_ABadRequestFailsAlone) {
  constexpr int64_t kLength = 9, kWidth = 64;
  // One window: the server waits for company before it starts a pass.
  ServerProcess server({"--threads", "1", "--batch-delay", "500ms"});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "layer", kWidth, 4);
  const auto stub = PlainStub(server);
  std::vector<v1::ForwardRequest> good;
  std::vector<std::vector<float>> solo;
  for (int i = 0; i < 4; ++i) {
    good.push_back(MakeForwardRequest(
        "layer", RandomFloats(kLength * kWidth, static_cast<uint32_t>(20 + i)), {kLength}));
    const PlainCall call = Call(stub.get(), good.back());
    ASSERT_TRUE(call.status.ok());
    solo.push_back(TensorFloats(call.response, "y"));
  }
  std::vector<float> with_nan = Numbers(kLength * kWidth);
  with_nan[5] = std::numeric_limits<float>::quiet_NaN();

  std::vector<std::future<PlainCall>> calls;
  for (const v1::ForwardRequest& request : good) {
    calls.push_back(std::async(std::launch::async, [&] { return Call(stub.get(), request); }));
  }
  auto nan = std::async(std::launch::async, [&] {
    return Call(stub.get(), MakeForwardRequest("layer", with_nan, {kLength}));
  });
  grpc::ClientContext context;
  auto cancelled =
      std::async(std::launch::async, [&] { return Call(stub.get(), good[0], 60.0, &context); });
  auto expired = std::async(std::launch::async, [&] { return Call(stub.get(), good[1], 0.02); });
  const PlainCall wrong =
      Call(stub.get(), MakeForwardRequest("layer", Numbers(kLength * 63), {kLength}));
  EXPECT_TRUE(server.WaitForMetric("headwise_queued_tokens", 6.0 * kLength));
  context.TryCancel();

  EXPECT_EQ(wrong.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(wrong.status.error_message(), HasSubstr("64"));
  EXPECT_EQ(cancelled.get().status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(expired.get().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  uint32_t shared = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const PlainCall call = calls[i].get();
    ASSERT_TRUE(call.status.ok()) << call.status.error_message();
    EXPECT_TRUE(SameBits(TensorFloats(call.response, "y"), solo[i]));
    shared = std::max(shared, call.response.batch_requests());
  }
  EXPECT_GT(shared, 1u);
  const PlainCall nan_call = nan.get();
  ASSERT_TRUE(nan_call.status.ok());
  EXPECT_TRUE(std::isnan(TensorFloats(nan_call.response, "y")[0]));
}

}  // namespace
}  // namespace headwise
