// SPDX-License-Identifier: Apache-2.0
// A transport whose time passes only when somebody waits.
#ifndef HEADWISE_TESTS_CLIENT_SIMULATED_TRANSPORT_H_
#define HEADWISE_TESTS_CLIENT_SIMULATED_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "client/load/load_report.h"
#include "client/load/transport.h"

namespace headwise::client {

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1000 * kMillisecond;

// What becomes of a call: how long it takes from when it was sent, and its status.
struct Served {
  int64_t service_ns = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
};
using Service = std::function<Served(const Call& call, int64_t sent_ns)>;

// No limit on concurrency: each call's end depends on its own start alone. Not thread-safe.
class SimulatedTransport : public Transport {
 public:
  explicit SimulatedTransport(Service service) : service_(std::move(service)) {}

  int64_t NowNs() override { return now_ns_; }
  void Start(const Call& call) override;
  std::optional<Completion> Wait(int64_t until_ns) override;
  CpuSeconds CpuSoFar() override {
    const double seconds = cpu_share * static_cast<double>(now_ns_) * 1e-9;
    return {.busiest_thread = seconds, .process = seconds};
  }

  double cpu_share = 0;
  size_t most_in_flight = 0;
  double in_flight_seconds = 0;  // integral of the number in flight over time

 private:
  const Service service_;
  int64_t now_ns_ = 0;
  std::multimap<int64_t, Completion> pending_;  // by end
};

// Runs a load test with these options against the service, and reports on it.
LoadReport Simulate(const LoadOptions& options, const Service& service, double cpu_share = 0);

// A percentile of a histogram is the exact one or up to 0.1 % above.
void ExpectTime(int64_t actual_ns, int64_t exact_ns);

// Options of a run: an open loop if `rate` is above 0, else a closed loop of one caller.
LoadOptions RunOptions(double rate, absl::Duration duration);

}  // namespace headwise::client

#endif  // HEADWISE_TESTS_CLIENT_SIMULATED_TRANSPORT_H_
