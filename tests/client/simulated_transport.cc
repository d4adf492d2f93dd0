// SPDX-License-Identifier: Apache-2.0
#include "tests/client/simulated_transport.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "client/load/load_app.h"
#include "gtest/gtest.h"

namespace headwise::client {

void SimulatedTransport::Start(const Call& call) {
  const Served served = service_(call, now_ns_);
  const int64_t done_ns = now_ns_ + served.service_ns;
  pending_.emplace(done_ns, Completion{.id = call.id,
                                       .done_ns = done_ns,
                                       .code = served.code,
                                       .reason = {},
                                       .queue_us = {},
                                       .compute_us = {}});
  in_flight_seconds += static_cast<double>(served.service_ns) * 1e-9;
  most_in_flight = std::max(most_in_flight, pending_.size());
}

std::optional<Completion> SimulatedTransport::Wait(int64_t until_ns) {
  if (pending_.empty() || pending_.begin()->first > until_ns) {
    now_ns_ = std::max(now_ns_, until_ns);
    return std::nullopt;
  }
  const Completion completion = pending_.begin()->second;
  pending_.erase(pending_.begin());
  now_ns_ = std::max(now_ns_, completion.done_ns);
  return completion;
}

LoadReport Simulate(const LoadOptions& options, const Service& service, double cpu_share) {
  SimulatedTransport transport(service);
  transport.cpu_share = cpu_share;
  Lengths lengths = *Lengths::Parse(options.lengths, options.seed);
  const std::unique_ptr<Arrivals> arrivals = MakeArrivals(options);
  std::vector<RunResult> runs;
  runs.push_back(
      Runner(RunnerSettings(options), arrivals.get(), &lengths, &transport, MakeRecord(options))
          .Run());
  return MakeReport(options, std::move(runs), static_cast<int>(options.connections));
}

void ExpectTime(int64_t actual_ns, int64_t exact_ns) {
  EXPECT_GE(actual_ns, exact_ns);
  EXPECT_LE(static_cast<double>(actual_ns), 1.001 * static_cast<double>(exact_ns));
}

LoadOptions RunOptions(double rate, absl::Duration duration) {
  LoadOptions options;
  options.layer = "m0";
  options.layers = {"m0"};
  options.targets = {"127.0.0.1:8500"};
  options.open_loop = rate > 0;
  options.rate = rate;
  options.concurrency = options.open_loop ? 0 : 1;
  options.duration = duration;
  options.lengths = "fixed:10";
  return options;
}

}  // namespace headwise::client
