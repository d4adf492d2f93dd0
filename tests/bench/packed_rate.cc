// SPDX-License-Identifier: Apache-2.0
// What the engine does without a service around it: requests of one sequence each, lengths as
// headwise-load draws them, a number of them always under way.
//   headwise-packed-rate D H LENGTHS CONCURRENCY SECONDS THREADS
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/numbers.h"
#include "client/load/lengths.h"
#include "core/engine.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

constexpr char kLayer[] = "layer";

struct Setting {
  int64_t width = 0, heads = 0, concurrency = 0, threads = 0;
  double seconds = 0;
  std::string lengths;
};

struct Rate {
  int64_t requests = 0, tokens = 0;
  double seconds = 0;
};

Rate Measure(const Setting& setting) {
  auto lengths = client::Lengths::Parse(setting.lengths, 0);
  CHECK_OK(lengths.status());
  const auto engine = MakeEngine(setting.threads);
  Load(engine.get(), kLayer, RandomLayer(BasicSpec(setting.width, setting.heads), 7));
  const std::vector<float> x = RandomFloats(int64_t{lengths->max()} * setting.width, 11);

  std::mutex mu;
  std::condition_variable ended;
  int64_t in_flight = 0;
  Rate rate;
  const auto send = [&] {
    const int64_t tokens = lengths->Next();
    ForwardRequest request;
    request.layer = kLayer;
    request.input.x = {DType::kF32, {tokens, setting.width}, x.data()};
    engine->Forward(std::move(request), [&, tokens](absl::StatusOr<ForwardResult> result) {
      CHECK_OK(result.status());
      const std::lock_guard<std::mutex> lock(mu);
      --in_flight;
      ++rate.requests;
      rate.tokens += tokens;
      ended.notify_one();
    });
  };
  const auto run = [&](double seconds) {
    const auto begin = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    rate = {};
    while (elapsed() < seconds) {
      {
        std::unique_lock<std::mutex> lock(mu);
        ended.wait(lock, [&] { return in_flight < setting.concurrency; });
        ++in_flight;
      }
      send();
    }
    std::unique_lock<std::mutex> lock(mu);
    ended.wait(lock, [&] { return in_flight == 0; });
    rate.seconds = elapsed();
  };
  run(0.5);  // to warm up
  run(setting.seconds);
  return rate;
}

int Main(int argc, char** argv) {
  Setting setting;
  if (argc != 7 || !absl::SimpleAtoi(argv[1], &setting.width) ||
      !absl::SimpleAtoi(argv[2], &setting.heads) ||
      !absl::SimpleAtoi(argv[4], &setting.concurrency) ||
      !absl::SimpleAtod(argv[5], &setting.seconds) ||
      !absl::SimpleAtoi(argv[6], &setting.threads)) {
    std::fprintf(stderr, "usage: headwise-packed-rate D H LENGTHS CONCURRENCY SECONDS THREADS\n");
    return 2;
  }
  setting.lengths = argv[3];
  const Rate rate = Measure(setting);
  std::printf("{\"requests_per_s\":%.3f,\"tokens_per_s\":%.1f}\n",
              static_cast<double>(rate.requests) / rate.seconds,
              static_cast<double>(rate.tokens) / rate.seconds);
  return 0;
}

}  // namespace
}  // namespace headwise

int main(int argc, char** argv) { return headwise::Main(argc, argv); }
