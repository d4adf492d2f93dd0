// SPDX-License-Identifier: Apache-2.0
// headwise-load against a stub server over loopback.
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/load_app.h"
#include "client/text_file.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/stub_server.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Established connections to 127.0.0.1:PORT as the kernel's tables list them: rows whose remote end
// is that port. Not the way in which headwise-load counts. A row may come twice while other
// programs' connections come and go, so they are told apart by their local end.
int EstablishedTo(int port) {
  std::set<std::string> local_ends;
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, peer, state;
      fields >> slot >> local >> peer >> state;
      const bool to_port = absl::EndsWith(peer, absl::StrFormat("0100007F:%04X", port));
      if (to_port && state == "01") local_ends.insert(local);
    }
  }
  return static_cast<int>(local_ends.size());
}

struct Outcome {
  int exit_code;
  std::string out, err;
};

Outcome Load(const StubServer& server, std::vector<std::string> words) {
  words.insert(words.end(), {"m0", "--server", server.target(), "--lengths", "fixed:3"});
  std::ostringstream out, err;
  const int exit_code = RunHeadwiseLoad(words, {}, false, out, err);
  return {exit_code, out.str(), err.str()};
}

TEST(Cases, T6_AsManyConnectionsAsAsked) {
  for (const int asked : {1, 8}) {
    std::atomic<int> most = 0;
    std::atomic<int> port = 0;
    StubAnswers answers;
    answers.forward = [&](const v1::ForwardRequest&, v1::ForwardResponse*) {
      const int now = EstablishedTo(port);
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
      return absl::OkStatus();
    };
    const auto server = StubServer::Start(answers);
    port = server->port();
    const Outcome outcome = Load(*server, {"--connections", absl::StrCat(asked), "--concurrency",
                                           "8", "--duration", "200ms", "--json", "-"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json report = json::parse(outcome.out);
    EXPECT_EQ(report["connections"], json({{"asked", asked}, {"measured", asked}}));
    EXPECT_EQ(most, asked);
    EXPECT_EQ(server->get_layer_calls(), 1);
  }
}

TEST(LoadTest, ReportsTheServersOwnSplit) {
  const auto server = StubServer::Start({});
  const Outcome outcome =
      Load(*server, {"--rate", "200", "--duration", "250ms", "--warmup", "5", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report["loop"], "OPEN");
  EXPECT_EQ(report["requests"]["planned"], 50);
  EXPECT_EQ(report["requests"]["ok"], 50);
  EXPECT_EQ(report["requests"]["warmup"], 5);
  EXPECT_EQ(report["queue_us"]["p50"], 7);
  EXPECT_EQ(report["compute_us"]["max"], 40);
  EXPECT_GT(report["latency_us"]["p50"], 0);
}

TEST(LoadTest, CallsAblate) {
  StubAnswers answers;
  v1::AblateResponse result;
  result.mutable_result()->set_layer("m0");
  answers.ablate_parts = {result, result};
  const auto server = StubServer::Start(answers);
  const Outcome outcome = Load(
      *server, {"--method", "mix", "--concurrency", "2", "--duration", "100ms", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report["method"], "MIX");
  EXPECT_EQ(report["requests"]["failed"], 0);
  EXPECT_GT(report["requests"]["ok"], 1);
}

TEST(LoadTest, ExitsWith1IfNothingSucceeds) {
  StubAnswers answers;
  answers.forward = [](const v1::ForwardRequest&, v1::ForwardResponse*) {
    return absl::ResourceExhaustedError("queue: must have room; was full");
  };
  answers.ablate_status = absl::NotFoundError("layer: must be loaded; was m0");
  const auto server = StubServer::Start(answers);
  for (const char* method : {"forward", "ablate"}) {
    const Outcome outcome =
        Load(*server, {"--method", method, "--rate", "100", "--duration", "50ms", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 1);
    const json report = json::parse(outcome.out);
    EXPECT_EQ(report["verdict"], "FAIL");
    EXPECT_EQ(report["requests"]["failed"], 5);
    EXPECT_EQ(report["latency_us"], json({{"count", 0}}));
  }
}

// Answers one call after the other, each after `milliseconds`.
StubAnswers OneAtATime(int milliseconds) {
  StubAnswers answers;
  answers.forward = [milliseconds, mu = std::make_shared<Mutex>()](const v1::ForwardRequest&,
                                                                   v1::ForwardResponse*) {
    MutexLock lock(mu.get());
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return absl::OkStatus();
  };
  return answers;
}

TEST(LoadTest, FindsTheRateOfAServerThatAnswersOneAtATime) {
  const auto server = StubServer::Start(OneAtATime(5));  // 200 a second at most
  const Outcome outcome = Load(
      *server, {"--find-rate", "p90<40ms", "--rate", "150", "--duration", "300ms", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_TRUE(report["find_rate"]["confirmed"]);
  EXPECT_GT(report["find_rate"]["rate"], 30);
  // The queue of so short a trial grows to the bound only somewhat above the server's rate.
  EXPECT_LT(report["find_rate"]["rate"], 300);
  EXPECT_EQ(report["thresholds"][0]["text"], "p90<40ms");
}

TEST(LoadTest, ExitsWith3WhereABoundIsMissedAndSaysSo) {
  const auto server = StubServer::Start(OneAtATime(1));
  const TempDir dir;
  const Outcome outcome = Load(*server, {"--rate", "100", "--duration", "200ms", "--threshold",
                                         "p50<10us,max<10s", "--html", dir.Path("page.html")});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("threshold p50<10us: missed"));
  EXPECT_THAT(outcome.out, HasSubstr("threshold max<10s: kept"));
  EXPECT_THAT(outcome.out, HasSubstr("verdict THRESHOLD_MISSED"));
  const auto page = ReadTextFile("page", dir.Path("page.html"));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, HasSubstr("id=\"spectrum\""));
  const Outcome nowhere = Load(
      *server, {"--rate", "100", "--duration", "50ms", "--html", dir.Path("absent/page.html")});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("html: must be a file that can be written"));
}

TEST(LoadTest, ExitsWith1WhereTheGeneratorWasTheLimit) {
  const auto server = StubServer::Start(OneAtATime(20));
  const Outcome outcome =
      Load(*server, {"--rate", "1000", "--concurrency", "1", "--duration", "200ms", "--json", "-"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report["verdict"], "GENERATOR_LIMITED");
  EXPECT_EQ(report["requests"]["planned"], 200);
  EXPECT_LT(report["requests"]["sent"], 20);
}

TEST(LoadTest, NamesAServerThatIsNotThere) {
  std::ostringstream out, err;
  EXPECT_EQ(RunHeadwiseLoad(std::vector<std::string>{"m0", "--server", "127.0.0.1:1"}, {}, false,
                            out, err),
            1);
  EXPECT_THAT(out.str(), IsEmpty());
  EXPECT_THAT(err.str(), HasSubstr("headwise-load: UNAVAILABLE: server: must answer at"));
}

}  // namespace
}  // namespace headwise::client
