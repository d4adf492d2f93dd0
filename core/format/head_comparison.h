// SPDX-License-Identifier: Apache-2.0
// One wide head against several of the same total width: what each costs, and what a single
// attention pattern can't read. Pure and thread-safe.
#ifndef HEADWISE_CORE_FORMAT_HEAD_COMPARISON_H_
#define HEADWISE_CORE_FORMAT_HEAD_COMPARISON_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/format/counts.h"

namespace headwise {

// The layer with so many heads, each with keys and values of its own.
struct HeadCountRow {
  int64_t heads = 0;
  int64_t dk = 0, dv = 0;     // of each head
  double scale = 0.0;         // 1/sqrt(dk)
  std::vector<Count> counts;  // CountLayer's
};

struct HeadComparison {
  std::vector<HeadCountRow> rows;      // one a head count, in order
  std::vector<std::string> changes;    // ids of counts that differ between rows
  std::vector<std::string> unchanged;  // ids of all others
};

// The layer's widths summed over its query heads, cut into each of `head_counts` heads; rows of
// pruned heads are left out.
// INVALID_ARGUMENT: no head count, one that doesn't divide both sums, and as CountLayer.
absl::StatusOr<HeadComparison> CompareHeadCounts(const CountShape& layer, const CountWorkload& work,
                                                 absl::Span<const int64_t> head_counts);

// Two heads that each give all weight to one key, and the best that one head can do instead. Key j
// has the value v_j = e_j; head f gives its weight to key f and reads feature f.
struct OneHotReadings {
  using Pair = std::array<double, 2>;
  std::array<Pair, 2> values = {};   // [key, feature]
  std::array<Pair, 2> weights = {};  // [head, key]
  Pair two_heads = {};               // z of both heads side by side: what is wanted
  Pair best_weights = {};            // [key] of the single head whose z comes nearest
  Pair one_head = {};                // its z
  double error = 0.0;                // ‖two_heads - one_head‖
  double relative_error = 0.0;       // over ‖two_heads‖
  // A W_O behind the single head can mend one set of values, not all of them. The least error
  // relative to the wanted reading, root mean square over values of mean 0 and variance 1,
  // whatever the weights and W_O.
  double relative_error_any_wo = 0.0;
};
OneHotReadings CompareOneHotReadings();

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_HEAD_COMPARISON_H_
