// SPDX-License-Identifier: Apache-2.0
// Percentiles of everything that was measured, in bounded memory.
#ifndef HEADWISE_CLIENT_LOAD_STATISTICS_H_
#define HEADWISE_CLIENT_LOAD_STATISTICS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headwise::client {

// A sample of times in ns as a high dynamic range histogram (the layout of Gil Tene's
// HdrHistogram): 2^(b-1) equal buckets to each doubling, so that a percentile is at most
// 1 + 2^(1-b) times the exact one and never below it. Times below 2^b ns, the mean and the largest
// are exact. Histograms merge without loss: percentiles of merged parts are those of the whole,
// which no average of the parts' percentiles is. Not thread-safe.
class Distribution {
 public:
  static constexpr int kFineBits = 11;   // 0.1 %: totals
  static constexpr int kCoarseBits = 8;  // 0.8 %: windows, of which a report holds many

  explicit Distribution(int bits = kFineBits) : bits_(bits) {}

  // Times below 0 count as 0.
  void Add(int64_t value_ns, uint64_t times = 1);
  // Both have the same number of bits.
  void Merge(const Distribution& other);

  uint64_t count() const { return count_; }
  double mean_ns() const;                     // 0 if empty
  int64_t max_ns() const { return max_ns_; }  // 0 if empty

  // The value of rank ceil(p n), p given in ten-thousandths (9900: p99): the largest time of its
  // bucket. The sample isn't empty.
  int64_t Percentile(uint32_t per_10000) const;

  // The same where the sample supports it: n >= 5 / (1 - p), so that at least five values lie
  // above.
  std::optional<int64_t> SupportedPercentile(uint32_t per_10000) const;

  // Values at most `value_ns`, but for those of its own bucket that are larger.
  uint64_t CountUpTo(int64_t value_ns) const;

  // The buckets that hold something, in order: the largest time of each, and how many.
  std::vector<std::pair<int64_t, uint64_t>> Buckets() const;

 private:
  size_t IndexOf(int64_t value_ns) const;
  int64_t LargestOf(size_t index) const;

  int bits_;
  std::vector<uint64_t> counts_;  // by bucket; as long as the largest value needs
  uint64_t count_ = 0;
  double sum_ns_ = 0;
  int64_t max_ns_ = 0;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_STATISTICS_H_
