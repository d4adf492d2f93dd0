// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_ABLATE_TOTALS_H_
#define HEADWISE_CLIENT_ABLATE_TOTALS_H_

#include <string>

#include "absl/status/status.h"
#include "client/gram_totals.h"
#include "core/format/effects.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise::client {

// Adds up the answers to one request on several inputs, given with `return_sums`. A prune plan is
// that of the last answer, whose sums its request began with. Memory grows with the number of
// sequences, never with their tokens. Not thread-safe.
class AblateTotals {
 public:
  explicit AblateTotals(const BootstrapOptions& bootstrap) : bootstrap_(bootstrap) {}

  // INTERNAL where the answers don't fit each other; FAILED_PRECONDITION where the layer was
  // replaced on the way.
  absl::Status Add(v1::AblateResult result);

  // The answer as if all inputs had been one: the same figures, without sums; of tensors only what
  // GramTotals adds up. Call it once, after an Add.
  v1::AblateResult Take();

 private:
  void Finish(int ablation, v1::AblationEffect* effect) const;

  const BootstrapOptions bootstrap_;
  v1::AblateResult total_;
  std::vector<DrawSums> sums_;   // of each ablation
  std::vector<PairSums> pairs_;  // of each interaction
  GramTotals grams_;
  std::string done_;  // the scope's text after its counts
  bool started_ = false;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_ABLATE_TOTALS_H_
