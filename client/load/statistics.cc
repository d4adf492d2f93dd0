// SPDX-License-Identifier: Apache-2.0
#include "client/load/statistics.h"

#include <algorithm>
#include <bit>

namespace headwise::client {
namespace {

constexpr uint64_t kWhole = 10000;
constexpr uint64_t kValuesAbove = 5;

}  // namespace

// Doublings above 2^b take 2^(b-1) buckets each: the first b bits of the value name its bucket.
size_t Distribution::IndexOf(int64_t value_ns) const {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(0, value_ns));
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - bits_);
  return (static_cast<size_t>(shift) << (bits_ - 1)) + static_cast<size_t>(value >> shift);
}

int64_t Distribution::LargestOf(size_t index) const {
  const size_t half = size_t{1} << (bits_ - 1);
  if (index < 2 * half) return static_cast<int64_t>(index);
  const size_t shift = index / half - 1;
  const uint64_t first = static_cast<uint64_t>(index - shift * half) << shift;
  return static_cast<int64_t>(first + (uint64_t{1} << shift) - 1);
}

void Distribution::Add(int64_t value_ns, uint64_t times) {
  const size_t index = IndexOf(value_ns);
  if (index >= counts_.size()) counts_.resize(index + 1);
  counts_[index] += times;
  count_ += times;
  sum_ns_ += static_cast<double>(std::max<int64_t>(0, value_ns)) * static_cast<double>(times);
  max_ns_ = std::max(max_ns_, value_ns);
}

void Distribution::Merge(const Distribution& other) {
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

double Distribution::mean_ns() const {
  return count_ == 0 ? 0 : sum_ns_ / static_cast<double>(count_);
}

int64_t Distribution::Percentile(uint32_t per_10000) const {
  // In whole numbers: 0.99 * 1000 in floating point may exceed 990 and move the rank.
  const uint64_t rank = std::max<uint64_t>(1, (count_ * uint64_t{per_10000} + kWhole - 1) / kWhole);
  uint64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= rank) return std::min(LargestOf(i), max_ns_);
  }
  return max_ns_;
}

std::optional<int64_t> Distribution::SupportedPercentile(uint32_t per_10000) const {
  if (count_ == 0 || count_ * (kWhole - per_10000) < kValuesAbove * kWhole) return std::nullopt;
  return Percentile(per_10000);
}

uint64_t Distribution::CountUpTo(int64_t value_ns) const {
  if (value_ns >= max_ns_) return count_;
  uint64_t seen = 0;
  for (size_t i = 0; i < counts_.size() && LargestOf(i) <= value_ns; ++i) seen += counts_[i];
  return seen;
}

std::vector<std::pair<int64_t, uint64_t>> Distribution::Buckets() const {
  std::vector<std::pair<int64_t, uint64_t>> buckets;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] > 0) buckets.emplace_back(std::min(LargestOf(i), max_ns_), counts_[i]);
  }
  return buckets;
}

}  // namespace headwise::client
