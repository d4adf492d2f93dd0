// SPDX-License-Identifier: Apache-2.0
// Two reports of headwise-load side by side: what changed, and whether it may be chance.
#ifndef HEADWISE_CLIENT_LOAD_COMPARE_H_
#define HEADWISE_CLIENT_LOAD_COMPARE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/report.h"

namespace headwise::client {

struct Change {
  std::string figure;            // "requests_per_s", "mean", "p50", …
  double before = 0, after = 0;  // a second, or us
  double change = 0;             // after / before - 1
  // Of the change; absent where there are too few blocks to say.
  std::optional<double> low, high;
};

enum class ComparisonVerdict { kNoDifferenceShown, kFaster, kSlower, kMixed, kTooShort };

struct Comparison {
  std::vector<std::string> mismatches;  // of the two set-ups, as "rate: 100 and 200"
  std::vector<Change> changes;
  std::vector<std::string> weak;  // percentiles that a report's sample doesn't support
  std::string blocks;             // what was resampled: "runs" or "windows"
  size_t before_blocks = 0, after_blocks = 0;
  double level = 0;  // of each interval; together they hold with 95 %
  ComparisonVerdict verdict = ComparisonVerdict::kNoDifferenceShown;
};

struct CompareSettings {
  bool force = false;    // compare runs of different set-ups, too
  double tolerance = 0;  // a change up to this share is none
  uint64_t seed = 0;
};

// `before` and `after` are reports as JSON. Intervals are percentile bootstraps over the runs where
// both reports hold at least five, else over the windows of one run (which knows nothing of how
// runs differ). INVALID_ARGUMENT: no report; set-ups that differ, by name, unless forced.
absl::StatusOr<Comparison> CompareReports(absl::string_view before, absl::string_view after,
                                          const CompareSettings& settings);

std::string ComparisonJson(const Comparison& comparison);
std::string ComparisonText(const Comparison& comparison, const Terminal& terminal);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_COMPARE_H_
