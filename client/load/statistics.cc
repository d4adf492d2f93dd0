// SPDX-License-Identifier: Apache-2.0
#include "client/load/statistics.h"

#include <algorithm>
#include <numeric>

namespace headwise::client {
namespace {

constexpr uint64_t kWhole = 10000;
constexpr uint64_t kValuesAbove = 5;

}  // namespace

void Distribution::Add(int64_t value_ns) {
  values_ns_.push_back(value_ns);
  sorted_ = false;
}

void Distribution::Merge(const Distribution& other) {
  values_ns_.insert(values_ns_.end(), other.values_ns_.begin(), other.values_ns_.end());
  sorted_ = false;
}

double Distribution::mean_ns() const {
  if (values_ns_.empty()) return 0;
  return std::accumulate(values_ns_.begin(), values_ns_.end(), 0.0) /
         static_cast<double>(values_ns_.size());
}

int64_t Distribution::max_ns() const { return values_ns_.empty() ? 0 : Sorted().back(); }

int64_t Distribution::Percentile(uint32_t per_10000) const {
  // In whole numbers: 0.99 * 1000 in floating point may exceed 990 and move the rank.
  const uint64_t rank = (values_ns_.size() * per_10000 + kWhole - 1) / kWhole;
  return Sorted()[std::max<uint64_t>(rank, 1) - 1];
}

std::optional<int64_t> Distribution::SupportedPercentile(uint32_t per_10000) const {
  if (values_ns_.empty() || values_ns_.size() * (kWhole - per_10000) < kValuesAbove * kWhole) {
    return std::nullopt;
  }
  return Percentile(per_10000);
}

const std::vector<int64_t>& Distribution::Sorted() const {
  if (!sorted_) {
    std::sort(values_ns_.begin(), values_ns_.end());
    sorted_ = true;
  }
  return values_ns_;
}

}  // namespace headwise::client
