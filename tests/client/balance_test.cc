// SPDX-License-Identifier: Apache-2.0
// Lists of replicas, and calls that are sent again.
#include "client/balance.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/channel.h"
#include "client/client.h"
#include "client/retry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/stub_server.h"

namespace headwise::client {
namespace {

using ::testing::HasSubstr;

TEST(BalanceTest, ListsOfAddressesBecomeWhatGrpcResolves) {
  EXPECT_EQ(*ResolvableTarget("10.0.0.1:8500,10.0.0.2:8500"), "ipv4:10.0.0.1:8500,10.0.0.2:8500");
  EXPECT_EQ(*ResolvableTarget("[::1]:1,[fe80::2]:2"), "ipv6:[::1]:1,[fe80::2]:2");
  for (const char* same :
       {"localhost:8500", "dns:///headwise:8500", "unix:/run/h.sock", "ipv4:1.2.3.4:5,1.2.3.4:6"}) {
    EXPECT_EQ(*ResolvableTarget(same), same);
  }
  for (const char* wrong : {"a:1,b:2", "10.0.0.1:8500,", "10.0.0.1:8500,[::1]:1",
                            "10.0.0.1,10.0.0.2", "10.0.0.1:x,10.0.0.2:1"}) {
    const absl::Status status = ResolvableTarget(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("server: must be"));
  }
}

TEST(BalanceTest, CallsTakeTurns) {
  std::vector<std::unique_ptr<StubServer>> servers;
  std::atomic<int> calls[3] = {};
  for (int i = 0; i < 3; ++i) {
    StubAnswers answers;
    answers.forward = [&calls, i](const v1::ForwardRequest&, v1::ForwardResponse*) {
      ++calls[i];
      return absl::OkStatus();
    };
    servers.push_back(StubServer::Start(answers));
  }
  const auto client = Client::Connect(
      absl::StrCat(servers[0]->target(), ",", servers[1]->target(), ",", servers[2]->target()));
  ASSERT_TRUE(client.ok()) << client.status();
  // Connections come up one by one: only then do all take part.
  for (int i = 0; i < 1000 && (calls[0] == 0 || calls[1] == 0 || calls[2] == 0); ++i) {
    ASSERT_TRUE((*client)->Forward({}).ok());
  }
  for (std::atomic<int>& count : calls) count = 0;
  for (int i = 0; i < 30; ++i) ASSERT_TRUE((*client)->Forward({}).ok());
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 10);
}

TEST(BalanceTest, SaysThatNobodyAnswersAtAnyAddress) {
  std::string targets;
  {
    const auto first = StubServer::Start({}), second = StubServer::Start({});
    targets = absl::StrCat(first->target(), ",", second->target());
  }
  // A second attempt would come after ten seconds at least.
  const auto client = Client::Connect(
      targets, {.retry = {.first_delay = absl::Seconds(20), .longest_delay = absl::Seconds(20)}});
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Time begin = absl::Now();
  const absl::Status status = (*client)->Forward({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("server: must answer at " + targets));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

// A client of a stub that fails `failures` times before it answers, and how often it was called.
absl::Status CallFlaky(const absl::Status& failure, int failures, const RetryOptions& retry,
                       int* attempts) {
  std::atomic<int> calls = 0;
  StubAnswers answers;
  answers.forward = [&](const v1::ForwardRequest&, v1::ForwardResponse*) {
    return ++calls <= failures ? failure : absl::OkStatus();
  };
  const auto server = StubServer::Start(answers);
  const absl::Status status =
      (*Client::Connect(server->target(), {.retry = retry}))->Forward({}).status();
  *attempts = calls;
  return status;
}

// gRPC's answer to a call that came as the server closed its door.
TEST(RetryTest, ACallThatTheServerCancelledIsSentAgain) {
  const absl::Status cancelled = absl::CancelledError("CANCELLED");
  int attempts = 0;
  EXPECT_TRUE(CallFlaky(cancelled, 1, {}, &attempts).ok());
  EXPECT_EQ(attempts, 2);
  EXPECT_TRUE(absl::IsUnavailable(CallFlaky(cancelled, 1, {.max_attempts = 1}, &attempts)));
}

TEST(RetryTest, SendsAgainWhatMayHelp) {
  const absl::Status gone = absl::UnavailableError("server: is draining");
  int attempts = 0;
  EXPECT_TRUE(CallFlaky(gone, 3, {}, &attempts).ok());
  EXPECT_EQ(attempts, 4);
  EXPECT_EQ(CallFlaky(gone, 4, {}, &attempts), gone);
  EXPECT_EQ(attempts, 4);
  EXPECT_EQ(CallFlaky(gone, 1, {.max_attempts = 1}, &attempts), gone);
  EXPECT_EQ(attempts, 1);
  for (const absl::Status& final :
       {absl::InvalidArgumentError("x: must be given; was absent"),
        absl::ResourceExhaustedError("queue: must have room, retry later; was full"),
        absl::DeadlineExceededError("too late")}) {
    EXPECT_EQ(CallFlaky(final, 1, {}, &attempts), final);
    EXPECT_EQ(attempts, 1);
  }
}

// Attempts at a call whose first one ended with gRPC's code and words.
int AttemptsAfter(grpc::StatusCode code, const std::string& words) {
  Retrier retrier({.first_delay = absl::ZeroDuration()});
  int attempts = 0;
  (void)retrier.Run(absl::Seconds(1), [&](absl::Duration) {
    if (++attempts > 1) return absl::OkStatus();
    return ToAbslStatus(code, words, "a:1", absl::Seconds(1));
  });
  return attempts;
}

int AttemptsAfterNoConnection(const std::string& words) {
  return AttemptsAfter(grpc::StatusCode::UNAVAILABLE,
                       "failed to connect to all addresses; last error: UNKNOWN: " + words);
}

TEST(RetryTest, NobodyListensIsFinal) {
  for (const char* words :
       {"ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
        "unix:/a: No such file or directory", "DNS resolution failed for a:1",
        "Ssl handshake failed", "empty certificate chain"}) {
    EXPECT_EQ(AttemptsAfterNoConnection(words), 1) << words;
  }
}

TEST(RetryTest, AConnectionThatBreaksAsItIsMadeIsAMomentsTrouble) {
  EXPECT_EQ(AttemptsAfterNoConnection("ipv4:127.0.0.1:1: Connection reset by peer"), 2);
}

TEST(RetryTest, ACallThatGrpcDropsForWantOfMemoryIsSentAgain) {
  EXPECT_EQ(
      AttemptsAfter(grpc::StatusCode::RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11"),
      2);
  EXPECT_EQ(AttemptsAfter(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue: must have room; was full"),
            1);
}

TEST(RetryTest, TheBudgetBoundsRetriesUnderAnOutage) {
  Retrier retrier({.first_delay = absl::ZeroDuration()});
  int attempts = 0;
  for (int i = 0; i < 1000; ++i) {
    (void)retrier.Run(absl::Seconds(1), [&](absl::Duration) {
      ++attempts;
      return absl::UnavailableError("gone");
    });
  }
  EXPECT_EQ(retrier.retries(), 20u);  // the budget; nothing earns it back
  EXPECT_EQ(attempts, 1020);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(
        retrier.Run(absl::Seconds(1), [](absl::Duration) { return absl::OkStatus(); }).ok());
  }
  for (int i = 0; i < 100; ++i) {
    (void)retrier.Run(absl::Seconds(1),
                      [](absl::Duration) { return absl::UnavailableError("gone"); });
  }
  EXPECT_NEAR(static_cast<double>(retrier.retries()), 30, 1);  // a tenth of the answers
}

TEST(RetryTest, EndsWithinTheTimeout) {
  Retrier retrier({.max_attempts = 100, .first_delay = absl::Milliseconds(20)});
  absl::Duration least = absl::InfiniteDuration();
  const absl::Time begin = absl::Now();
  const absl::Status status = retrier.Run(absl::Milliseconds(100), [&](absl::Duration left) {
    least = std::min(least, left);
    return absl::UnavailableError("gone");
  });
  EXPECT_EQ(status, absl::UnavailableError("gone"));
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(101));
  EXPECT_GT(least, absl::ZeroDuration());
}

}  // namespace
}  // namespace headwise::client
