// SPDX-License-Identifier: Apache-2.0
#include "core/analysis/ratio.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace headwise {
namespace {

double Value(double sum, double count, bool root) {
  if (count <= 0.0) return std::nan("");
  const double mean = sum / count;
  return root ? std::sqrt(std::max(0.0, mean)) : mean;
}

}  // namespace

Stat Ratio::ToStat(absl::Span<const int64_t> units, const Resamples* resamples, bool root) const {
  Stat stat;
  std::vector<double> sums, counts;
  double sum = 0.0, count = 0.0;
  for (const int64_t unit : units) {
    sums.push_back(sum_[static_cast<size_t>(unit)]);
    counts.push_back(count_[static_cast<size_t>(unit)]);
    sum += sums.back();
    count += counts.back();
  }
  const double estimate = Value(sum, count, root);
  if (!std::isfinite(estimate)) return stat;
  stat.value = estimate;
  if (resamples == nullptr) {
    Interval range{.low = estimate, .high = estimate};
    for (size_t u = 0; u < sums.size(); ++u) {
      const double value = Value(sums[u], counts[u], root);
      if (!std::isfinite(value)) continue;
      range.low = std::min(range.low, value);
      range.high = std::max(range.high, value);
    }
    stat.interval = range;
    return stat;
  }
  std::vector<double> resampled = resamples->Sums(sums), jackknife;
  const std::vector<double> resampled_counts = resamples->Sums(counts);
  for (size_t i = 0; i < resampled.size(); ++i) {
    resampled[i] = Value(resampled[i], resampled_counts[i], root);
  }
  for (size_t u = 0; u < sums.size(); ++u) {
    jackknife.push_back(Value(sum - sums[u], count - counts[u], root));
  }
  stat.interval = BcaInterval(estimate, std::move(resampled), jackknife, resamples->options());
  return stat;
}

}  // namespace headwise
