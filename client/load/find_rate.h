// SPDX-License-Identifier: Apache-2.0
// The largest rate of an open loop at which a run still keeps its bounds.
#ifndef HEADWISE_CLIENT_LOAD_FIND_RATE_H_
#define HEADWISE_CLIENT_LOAD_FIND_RATE_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace headwise::client {

struct TrialOutcome {
  bool met = false;      // every bound was kept
  bool limited = false;  // the generator was the limit: says nothing about the server
};

struct Trial {
  double rate = 0;
  bool confirming = false;
  TrialOutcome outcome;
};

struct FoundRate {
  // Calls a second; 0 where not even the lowest rate tried kept the bounds.
  double rate = 0;
  bool confirmed = false;          // by further runs, all of which kept the bounds
  bool generator_limited = false;  // the next rate above failed for the generator's sake
  std::vector<Trial> trials;       // in the order in which they ran; the last one is the last
                                   // confirmation where the rate is confirmed
};

struct FindRateSettings {
  double start = 50;        // calls a second
  double precision = 0.05;  // ends when the lowest miss is at most 1 + this times the best rate
  int confirmations = 2;
  int most_trials = 40;
};

// Doubles (or halves) the rate until it lies between one that keeps the bounds and one that
// doesn't, then bisects in between, geometrically. The best rate is run again: a rate that kept
// the bounds once by luck is a miss like any other, and the next lower one is tried. Errors of
// `run` end the search.
absl::StatusOr<FoundRate> FindRate(
    const FindRateSettings& settings,
    const std::function<absl::StatusOr<TrialOutcome>(double rate)>& run);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_FIND_RATE_H_
