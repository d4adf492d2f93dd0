// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_ANALYSIS_RATIO_H_
#define HEADWISE_CORE_ANALYSIS_RATIO_H_

#include <cstdint>
#include <vector>

#include "core/analysis/analysis.h"
#include "core/format/effects.h"

namespace headwise {

// Sums and counts of a figure of rows, sequence by sequence: its pooled mean is a ratio of sums.
class Ratio {
 public:
  explicit Ratio(size_t sequences) : sum_(sequences, 0.0), count_(sequences, 0.0) {}

  void Add(size_t sequence, double value, double count = 1.0) {
    sum_[sequence] += value;
    count_[sequence] += count;
  }

  // The pooled mean (its square root where `root`) with its interval over the sequences that have
  // tokens, `units`; null `resamples`: the range of those with rows.
  Stat ToStat(absl::Span<const int64_t> units, const Resamples* resamples, bool root = false) const;

 private:
  std::vector<double> sum_, count_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_ANALYSIS_RATIO_H_
