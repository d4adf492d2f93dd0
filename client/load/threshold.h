// SPDX-License-Identifier: Apache-2.0
// What a run must keep: "p99<20ms,errors<1%,requests_per_s>500".
#ifndef HEADWISE_CLIENT_LOAD_THRESHOLD_H_
#define HEADWISE_CLIENT_LOAD_THRESHOLD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/record.h"

namespace headwise::client {

// One bound. Latency counts from the planned send. A failed call counts as later than any bound of
// a percentile: refusals in no time don't make a server fast.
struct Threshold {
  enum class Figure { kPercentile, kMean, kMax, kErrors, kRequestsPerSecond };
  std::string text;  // as it was given
  Figure figure = Figure::kPercentile;
  uint32_t per_10000 = 0;  // percentile: 9900 is p99
  double bound = 0;        // ns, a share of the calls, or requests a second

  // Percentile: calls of `planned` that may be late or fail.
  uint64_t Allowance(double planned) const;
  // Percentile: whether the call was late or failed.
  bool IsMiss(const Sample& sample) const;
  // Percentile: calls of the record that are late or failed.
  uint64_t Misses(const RunRecord& record) const;
};

struct ThresholdOutcome {
  std::string text;
  bool met = false;
  // In the bound's unit; nullopt where too few calls succeeded to say.
  std::optional<double> value;
  bool is_time = false;  // the value is ns
};

// With commas. Usage error, which names `flag`, for anything else.
absl::StatusOr<std::vector<Threshold>> ParseThresholds(absl::string_view flag,
                                                       absl::string_view text);

ThresholdOutcome Check(const Threshold& threshold, const RunRecord& record, double requests_per_s);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_THRESHOLD_H_
