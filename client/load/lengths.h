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

// Sequence lengths of a load test: "fixed:128", "uniform:16-512" (both ends included), "file:F"
// (recorded lengths, taken in order, again and again: a tensor file of integers, or, for .txt and
// .csv, whole numbers between blanks, commas and line breaks), or a mix of these with weights,
// "3*fixed:16+1*uniform:256-512". Not thread-safe.
class Lengths {
 public:
  // Usage error for the grammar; the file's own errors otherwise. Lengths are at least 1.
  static absl::StatusOr<Lengths> Parse(absl::string_view text, uint64_t seed);

  uint32_t Next();
  uint32_t max() const { return max_; }
  const std::string& text() const { return text_; }

 private:
  struct Source {
    uint32_t weight = 1;
    uint32_t min = 1, max = 1;
    std::vector<uint32_t> listed;  // file: else empty
    size_t next = 0;
  };

  Lengths(absl::string_view text, uint64_t seed) : text_(text), random_(seed) {}
  // Errors as Parse's, with the grammar's in the words of the whole text.
  absl::StatusOr<Source> ParseSource(absl::string_view part) const;
  uint64_t Below(uint64_t choices);

  std::string text_;
  std::mt19937_64 random_;
  std::vector<Source> sources_;
  uint64_t weights_ = 0;
  uint32_t max_ = 1;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_LENGTHS_H_
