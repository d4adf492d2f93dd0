// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_LOAD_LENGTHS_H_
#define HEADWISE_CLIENT_LOAD_LENGTHS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise::client {

// Sequence lengths of a load test: "fixed:128", "uniform:16-512" (both ends included), or "file:F"
// (a tensor file of integers, taken in order, again and again). Not thread-safe.
class Lengths {
 public:
  // Usage error for the grammar; the file's own errors otherwise. Lengths are at least 1.
  static absl::StatusOr<Lengths> Parse(absl::string_view text, uint64_t seed);

  uint32_t Next();
  uint32_t max() const { return max_; }
  const std::string& text() const { return text_; }

 private:
  Lengths(absl::string_view text, uint64_t seed) : text_(text), random_(seed) {}

  std::string text_;
  std::mt19937_64 random_;
  uint32_t min_ = 1;
  uint32_t max_ = 1;
  std::vector<uint32_t> listed_;  // file: else empty
  size_t next_ = 0;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_LENGTHS_H_
