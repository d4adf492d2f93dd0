// SPDX-License-Identifier: Apache-2.0
// Exact percentiles of everything that was measured.
#ifndef HEADWISE_CLIENT_LOAD_STATISTICS_H_
#define HEADWISE_CLIENT_LOAD_STATISTICS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace headwise::client {

// A sample of times in ns, kept whole: percentiles of merged parts are those of the whole, which no
// average of the parts' percentiles is. Not thread-safe.
class Distribution {
 public:
  void Add(int64_t value_ns);
  void Merge(const Distribution& other);

  size_t count() const { return values_ns_.size(); }
  double mean_ns() const;  // 0 if empty
  int64_t max_ns() const;  // 0 if empty

  // The value of rank ceil(p n), p given in ten-thousandths (9900: p99). The sample isn't empty.
  int64_t Percentile(uint32_t per_10000) const;

  // The same where the sample supports it: n >= 5 / (1 - p), so that at least five values lie
  // above.
  std::optional<int64_t> SupportedPercentile(uint32_t per_10000) const;

 private:
  const std::vector<int64_t>& Sorted() const;

  mutable std::vector<int64_t> values_ns_;
  mutable bool sorted_ = true;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_STATISTICS_H_
