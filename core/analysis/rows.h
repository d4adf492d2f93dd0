// SPDX-License-Identifier: Apache-2.0
// Rows of attention weights, one at a time.
#ifndef HEADWISE_CORE_ANALYSIS_ROWS_H_
#define HEADWISE_CORE_ANALYSIS_ROWS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "core/analysis/analysis.h"

namespace headwise {

// A query position of a sequence, and for each head what it sees.
struct WeightRow {
  size_t sequence = 0;
  int64_t query = 0;
  int64_t row = 0;   // in the packed input
  int64_t keys = 0;  // S
  // [H]: weights of one head over all keys, those of a sink left out (they sum to 1), [S]; empty
  // where the head sees no key.
  std::vector<std::vector<double>> shares;
  std::vector<const float*> p;   // [H]: as they are, [S]
  std::vector<int64_t> visible;  // [H]: how many keys the head may see
};

// Calls `take` for every row of the input, in order, until `watch.stop` says true.
void ForEachRow(const AnalysisInput& input, const AnalysisWatch& watch,
                const std::function<void(const WeightRow&)>& take);

}  // namespace headwise

#endif  // HEADWISE_CORE_ANALYSIS_ROWS_H_
