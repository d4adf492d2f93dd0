// SPDX-License-Identifier: Apache-2.0
#include "client/load/lengths.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/status.h"
#include "client/tensors.h"

namespace headwise::client {
namespace {

absl::Status Malformed(absl::string_view text) {
  return UsageError(absl::StrCat(
      "--lengths: must be fixed:N, uniform:A-B or file:F with 1 <= A <= B; was \"", text, "\""));
}

}  // namespace

absl::StatusOr<Lengths> Lengths::Parse(absl::string_view text, uint64_t seed) {
  Lengths lengths(text, seed);
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "fixed:")) {
    if (!absl::SimpleAtoi(rest, &lengths.max_) || lengths.max_ == 0) return Malformed(text);
    lengths.min_ = lengths.max_;
  } else if (absl::ConsumePrefix(&rest, "uniform:")) {
    const std::vector<absl::string_view> ends = absl::StrSplit(rest, '-');
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &lengths.min_) ||
        !absl::SimpleAtoi(ends[1], &lengths.max_) || lengths.min_ == 0 ||
        lengths.min_ > lengths.max_) {
      return Malformed(text);
    }
  } else if (absl::ConsumePrefix(&rest, "file:")) {
    CLIENT_ASSIGN_OR_RETURN(lengths.listed_, ReadLengths(rest, "lengths"));
    if (lengths.listed_.empty() ||
        *std::min_element(lengths.listed_.begin(), lengths.listed_.end()) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("lengths: must be at least one, each at least 1; was ", rest));
    }
    lengths.max_ = *std::max_element(lengths.listed_.begin(), lengths.listed_.end());
  } else {
    return Malformed(text);
  }
  return lengths;
}

uint32_t Lengths::Next() {
  if (!listed_.empty()) return listed_[next_++ % listed_.size()];
  // Not std::uniform_int_distribution: a seed gives the same lengths with every standard library.
  const uint64_t choices = uint64_t{max_} - min_ + 1;
  return min_ + static_cast<uint32_t>(choices == 1 ? 0 : random_() % choices);
}

}  // namespace headwise::client
