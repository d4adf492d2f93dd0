// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BASE_SIZE_HISTOGRAM_H_
#define HEADWISE_CORE_BASE_SIZE_HISTOGRAM_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace headwise {

// How often sizes of each power of two occurred. As thread-safe as a plain struct.
struct SizeHistogram {
  static constexpr size_t kBuckets = 21;

  // counts[i]: sizes in (2^(i-1), 2^i]; the last: all larger ones.
  std::array<int64_t, kBuckets> counts = {};
  int64_t sum = 0;

  void Add(int64_t size) {
    const auto bucket =
        static_cast<size_t>(size <= 1 ? 0 : std::bit_width(static_cast<uint64_t>(size - 1)));
    ++counts[bucket < kBuckets ? bucket : kBuckets - 1];
    sum += size;
  }
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_SIZE_HISTOGRAM_H_
