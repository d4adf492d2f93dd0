// SPDX-License-Identifier: Apache-2.0
// What the service adds to the engine: a server process and a client on loopback.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/log/check.h"
#include "client/client.h"
#include "core/engine.h"
#include "tests/bench/bench.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise::bench {
namespace {

constexpr char kLayer[] = "layer";

// The same work in process and over gRPC. Numbers differ, sizes don't.
struct ServiceCase {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TestInput> input;
  ServerProcess server;
  std::unique_ptr<client::Client> client;
  v1::ForwardRequest request;

  void InProcess() { CHECK_OK(ForwardNow(engine.get(), MakeForward(kLayer, *input)).status()); }
  void Remote() { CHECK_OK(client->Forward(request).status()); }
};

std::unique_ptr<ServiceCase> MakeCase(const Settings& settings, int64_t batch, int64_t length,
                                      int64_t d_model, int64_t heads) {
  auto c = std::make_unique<ServiceCase>();
  const std::vector<int64_t> lengths(static_cast<size_t>(batch), settings.Size(length, 1));
  const int64_t width = settings.Size(d_model / heads, 0) * heads;
  const std::vector<float> x = RandomFloats(batch * lengths.front() * width, 11);
  c->engine = MakeEngine(settings.threads);
  Load(c->engine.get(), kLayer, RandomLayer(BasicSpec(width, heads), 7));
  c->input = std::make_unique<TestInput>(width, x, lengths);
  c->client = ConnectTo(c->server);
  UploadRandomLayer(c->client.get(), kLayer, width, heads);
  c->request = MakeForwardRequest(kLayer, x, lengths);
  return c;
}

std::string CheckShape(ServiceCase* c) {
  const auto answer = c->client->Forward(c->request);
  if (!answer.ok()) return answer.status().ToString();
  const auto own = ForwardNow(c->engine.get(), MakeForward(kLayer, *c->input));
  const size_t bytes = answer->tensors(0).data().size();
  return bytes == own->outputs[0].data.size() ? "" : "another number of bytes than in process";
}

double MedianSeconds(int calls, absl::FunctionRef<void()> call) {
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) seconds.push_back(SecondsOf(call));
  return SpreadOf(std::move(seconds)).median;
}

void AddedLatencyRow(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("rpc_added_p50_ms")) return;
  auto c = MakeCase(settings, 1, 10, 512, 8);
  const int calls = settings.quick ? 300 : 1000;
  std::vector<double> added;
  for (int i = 0; i < settings.repetitions(); ++i) {
    const double inside = MedianSeconds(calls, [&] { c->InProcess(); });
    added.push_back(1e3 * (MedianSeconds(calls, [&] { c->Remote(); }) - inside));
  }
  rows->push_back(MakeRow("rpc_added_p50_ms", SpreadOf(std::move(added)), "ms"));
  rows->back().error = CheckShape(c.get());
}

// User and system time of a process so far.
double CpuSeconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0.0, system = 0.0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void CpuRow(const Settings& settings, std::vector<Row>* rows) {
  if (!settings.Wants("server_cpu_over_compute")) return;
  auto c = MakeCase(settings, 8, 128, 768, 12);
  const int calls = settings.quick ? 20 : 150;
  std::vector<double> ratios;
  for (int i = 0; i < settings.repetitions(); ++i) {
    const double own = CpuSeconds(getpid());
    for (int call = 0; call < calls; ++call) c->InProcess();
    const double inside = CpuSeconds(getpid()) - own;
    const double before = CpuSeconds(c->server.pid());
    for (int call = 0; call < calls; ++call) c->Remote();
    ratios.push_back((CpuSeconds(c->server.pid()) - before) / inside);
  }
  rows->push_back(MakeRow("server_cpu_over_compute", SpreadOf(std::move(ratios)), "ratio"));
  rows->back().error = CheckShape(c.get());
}

// A layer of 4 MiB that comes and goes.
void ResidentRow(const Settings& settings, std::vector<Row>* rows) {
  if (settings.quick || !settings.Wants("rss_rounds")) return;
  constexpr int64_t kTokens = 32, kWidth = 512, kHeads = 8;
  ServerProcess server;
  const auto client = ConnectTo(server);
  const auto request = MakeForwardRequest(kLayer, RandomFloats(kTokens * kWidth, 1), {kTokens});
  std::string error;
  double after_5 = 0.0;
  for (int round = 1; round <= 200; ++round) {
    UploadRandomLayer(client.get(), kLayer, kWidth, kHeads);
    const auto answer = client->Forward(request);
    if (!answer.ok()) error = answer.status().ToString();
    CHECK_OK(client->UnloadLayer(kLayer).status());
    if (round == 5) after_5 = static_cast<double>(server.ResidentBytes());
  }
  const double ratio = static_cast<double>(server.ResidentBytes()) / after_5;
  rows->push_back(MakeRow("rss_rounds", {ratio, ratio, ratio}, "ratio"));
  rows->back().error = error;
}

}  // namespace

void ServiceRows(const Settings& settings, std::vector<Row>* rows) {
  AddedLatencyRow(settings, rows);
  CpuRow(settings, rows);
  ResidentRow(settings, rows);
}

}  // namespace headwise::bench
