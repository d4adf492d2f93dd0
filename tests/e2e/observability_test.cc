// SPDX-License-Identifier: Apache-2.0
// Logs, log levels and keepalive of a running server.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>

#include "headwise/v1/headwise.grpc.pb.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 64, kHeads = 4, kLength = 16;
constexpr char kTrace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

grpc::Status Call(const ServerProcess& server, const std::string& request_id) {
  const auto stub = v1::Headwise::NewStub(
      grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("traceparent", kTrace);
  context.AddMetadata("headwise-client", "alice");
  v1::ForwardRequest request =
      MakeForwardRequest("a", RandomFloats(kLength * kWidth, 7), {kLength});
  request.set_request_id(request_id);
  v1::ForwardResponse response;
  return stub->Forward(&context, request, &response);
}

// Waits for the log to hold `text`.
bool AwaitLog(const ServerProcess& server, const std::string& text) {
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (Clock::now() < end) {
    if (server.Log().find(text) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

TEST(Observability, SlowCallsAreLoggedWithTheirTrace) {
  ServerProcess server({"--slow-request", "1us"});
  UploadRandomLayer(ConnectTo(server).get(), "a", kWidth, kHeads);
  ASSERT_TRUE(Call(server, "id-1").ok());
  ASSERT_TRUE(AwaitLog(server, "request=id-1"));
  const std::string log = server.Log();
  EXPECT_THAT(log, HasSubstr("slow call method=Forward layer=a code=OK"));
  EXPECT_THAT(log, HasSubstr("client=alice"));
  EXPECT_THAT(log, HasSubstr(std::string("traceparent=") + kTrace));
}

TEST(Observability, TheLogLevelChangesBySignal) {
  ServerProcess server;
  UploadRandomLayer(ConnectTo(server).get(), "a", kWidth, kHeads);
  ASSERT_TRUE(Call(server, "quiet-1").ok());
  server.Signal(SIGUSR1);
  ASSERT_TRUE(AwaitLog(server, "log level debug"));
  ASSERT_TRUE(Call(server, "loud").ok());
  ASSERT_TRUE(AwaitLog(server, "request=loud"));
  server.Signal(SIGUSR2);
  ASSERT_TRUE(AwaitLog(server, "log level info"));
  ASSERT_TRUE(Call(server, "quiet-2").ok());
  EXPECT_THAT(server.Log(), Not(HasSubstr("request=quiet")));
}

TEST(Observability, TheFirstLineSaysHowManyThreadsAndWhy) {
  ServerProcess server({"--threads", "1", "--pin-threads"});
  EXPECT_TRUE(AwaitLog(server, "threads 1 (--threads)"));
}

// The case's idle times, divided by ten, with the server's limits likewise.
TEST(Cases, S4_TheDefaultPairKeepsItsConnectionAndAnEagerPingerIsSentAway) {
  ServerProcess server;
  UploadRandomLayer(ConnectTo(server).get(), "a", kWidth, kHeads);
  const auto client = ConnectTo(server);
  const v1::ForwardRequest request =
      MakeForwardRequest("a", RandomFloats(kLength * kWidth, 7), {kLength});
  ASSERT_TRUE(client->Forward(request).ok());
  std::this_thread::sleep_for(std::chrono::seconds(6));
  EXPECT_TRUE(client->Forward(request).ok());
  // A client that pings every 100 ms: calls fail as UNAVAILABLE or go on, none hangs.
  grpc::ChannelArguments eager;
  eager.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 100);
  eager.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  eager.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto stub = v1::Headwise::NewStub(
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), eager));
  int ok = 0;
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::ForwardResponse response;
    const grpc::Status status = stub->Forward(&context, request, &response);
    ok += status.ok() ? 1 : 0;
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE)
        << status.error_message();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  EXPECT_GT(ok, 10);
  EXPECT_TRUE(client->Forward(request).ok());
}

TEST(UnixSocket, TheCommandLineReachesAServerOverIt) {
  const TempDir dir;
  const std::string address = "unix:" + dir.Path("h.sock");
  ServerProcess server({"--listen", "127.0.0.1:0," + address, "--demo"});
  EXPECT_THAT(server.address(), HasSubstr(address));
  const CommandResult listed =
      RunProgram("headwise", {"--server", address, "--timeout", "20s", "list"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
}

}  // namespace
}  // namespace headwise
