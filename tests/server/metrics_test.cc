// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/refusal.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::ptrdiff_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Metrics, CountersAreThereFromTheStart) {
  FakeEngine engine;
  const Metrics metrics(&engine, "1.2.3");
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("\nheadwise_dropped_total 0\n"));
  EXPECT_THAT(text, HasSubstr("\nheadwise_passes_total 0\n"));
  EXPECT_THAT(text, HasSubstr("headwise_requests_total{"));
  EXPECT_THAT(text, HasSubstr("version=\"1.2.3\"} 1"));
}

TEST(Metrics, NamesOfCallersMakeNoSeries) {
  FakeEngine engine;
  engine.AddLayer("toy");
  Metrics metrics(&engine, "1");
  metrics.Refresh();
  metrics.Record({"none", "Forward", absl::NotFoundError(""), absl::Seconds(1)});
  const std::string before = metrics.Text();
  for (int i = 0; i < 1000; ++i) {
    metrics.Record({absl::StrCat("none", i), "Forward", absl::NotFoundError(""), absl::Seconds(1)});
  }
  const std::string after = metrics.Text();
  EXPECT_EQ(Lines(after), Lines(before));
  EXPECT_THAT(after, HasSubstr("headwise_requests_total{code=\"NOT_FOUND\",layer=\"unknown\","
                               "method=\"Forward\"} 1001"));
}

TEST(Metrics, SeriesGoWithTheirLayer) {
  FakeEngine engine;
  Metrics metrics(&engine, "1");
  const std::ptrdiff_t before = Lines(metrics.Text());
  for (int i = 0; i < 20; ++i) {
    const std::string name = absl::StrCat("layer", i);
    engine.AddLayer(name);
    metrics.Refresh();
    metrics.Record({name, "Forward", absl::OkStatus(), absl::Seconds(1)});
    EXPECT_THAT(metrics.Text(), HasSubstr("layer=\"" + name + "\""));
    ASSERT_TRUE(engine.UnloadLayer(name).ok());
    metrics.Refresh();
    EXPECT_THAT(metrics.Text(), Not(HasSubstr("layer=\"" + name + "\"")));
  }
  EXPECT_EQ(Lines(metrics.Text()), before);
}

TEST(Metrics, StagesTokensAndRefusals) {
  FakeEngine engine;
  engine.AddLayer("toy");
  Metrics metrics(&engine, "1", [] { return std::map<std::string, int64_t>{{"requests", 42}}; });
  metrics.Refresh();
  PassInfo pass;
  pass.lengths = {3, 4};
  pass.queue_us = 1500;
  pass.pack_us = 100;
  pass.compute_us = 700;
  metrics.Record(
      {"toy", "Forward", absl::OkStatus(), absl::Milliseconds(3), &pass, absl::Microseconds(10)});
  metrics.Record(
      {"toy", "Forward", Refuse(Refusal::kQueueFull, "queue: full; was"), absl::Microseconds(5)});
  const std::string text = metrics.Text();
  for (const char* stage : {"queue", "pack", "compute", "encode"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat(
                          "headwise_stage_seconds_count{layer=\"toy\",method=\"Forward\",stage=\"",
                          stage, "\"} 1")));
  }
  EXPECT_THAT(text, HasSubstr("headwise_goodput_tokens_total{layer=\"toy\",method=\"Forward\"} 7"));
  EXPECT_THAT(text, HasSubstr("headwise_refusals_total{reason=\"QUEUE_FULL\"} 1"));
  EXPECT_THAT(text, HasSubstr("headwise_refusals_total{reason=\"CLIENT_LIMIT\"} 0"));
  EXPECT_THAT(text, HasSubstr("headwise_memory_bytes{kind=\"requests\"} 42"));
  EXPECT_THAT(text, HasSubstr("headwise_memory_bytes{kind=\"resident\"}"));
  EXPECT_THAT(text, HasSubstr("headwise_batch_tokens_bucket{le=\"+Inf\"} 0"));
  EXPECT_THAT(text, HasSubstr("headwise_throttled_periods_total"));
  ASSERT_TRUE(engine.UnloadLayer("toy").ok());
  metrics.Refresh();
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("toy")));
}

// The whole answer to one HTTP request.
std::string Http(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return "";
  const std::string text = request + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (send(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return "";
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

class HttpPagesTest : public ServerFixture {};

TEST_F(HttpPagesTest, MetricsHealthAndReadiness) {
  ServerOptions options = TestOptions();
  options.metrics = "127.0.0.1:0";
  Start(options);
  int port = 0;
  const std::vector<std::string> banner = absl::StrSplit(server_->Banner(), ' ');
  ASSERT_EQ(banner.size(), 4u);
  ASSERT_EQ(banner[2], "metrics");
  const std::vector<std::string> address = absl::StrSplit(banner[3], ':');
  ASSERT_TRUE(absl::SimpleAtoi(address[1], &port));

  EXPECT_THAT(Http(port, "GET /healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Http(port, "GET /readyz"), StartsWith("HTTP/1.1 503"));
  ASSERT_TRUE(server_->LoadStartupLayers().ok());
  EXPECT_THAT(Http(port, "GET /readyz"), StartsWith("HTTP/1.1 200"));
  grpc::ClientContext context;
  v1::ForwardResponse response;
  ASSERT_TRUE(stub_->Forward(&context, ToyForward(1), &response).ok());
  const std::string metrics = Http(port, "GET /metrics");
  EXPECT_THAT(metrics, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("headwise_requests_total{code=\"OK\",layer=\"toy\","
                                 "method=\"Forward\"} 1"));
  EXPECT_THAT(Http(port, "GET /other"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Http(port, "POST /metrics"), StartsWith("HTTP/1.1 405"));
  server_->BeginDrain();
  EXPECT_THAT(Http(port, "GET /readyz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Http(port, "GET /healthz"), StartsWith("HTTP/1.1 200"));

  ServerOptions second = TestOptions();
  second.metrics = banner[3];
  EXPECT_EQ(Server::Start(second, &engine_).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace headwise
