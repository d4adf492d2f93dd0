// SPDX-License-Identifier: Apache-2.0
#include "client/load/lengths.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/status.h"
#include "client/tensors.h"
#include "client/text_file.h"

namespace headwise::client {
namespace {

absl::Status Malformed(absl::string_view text) {
  return UsageError(
      absl::StrCat("--lengths: must be fixed:N, uniform:A-B or file:F with 1 <= A <= B, or a mix "
                   "like 3*fixed:16+1*uniform:256-512; was \"",
                   text, "\""));
}

absl::StatusOr<std::vector<uint32_t>> ReadTextLengths(const std::string& file) {
  CLIENT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("lengths", file));
  std::vector<uint32_t> lengths;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    uint32_t length = 0;
    if (!absl::SimpleAtoi(word, &length)) {
      return absl::InvalidArgumentError(
          absl::StrCat("lengths: must be whole numbers; was \"", word, "\" in ", file));
    }
    lengths.push_back(length);
  }
  return lengths;
}

absl::StatusOr<std::vector<uint32_t>> ReadRecorded(absl::string_view file) {
  const bool text = absl::EndsWith(file, ".txt") || absl::EndsWith(file, ".csv");
  auto lengths = text ? ReadTextLengths(std::string(file)) : ReadLengths(file, "lengths");
  CLIENT_RETURN_IF_ERROR(lengths.status());
  if (lengths->empty() || *std::min_element(lengths->begin(), lengths->end()) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("lengths: must be at least one, each at least 1; was ", file));
  }
  return lengths;
}

}  // namespace

absl::StatusOr<Lengths::Source> Lengths::ParseSource(absl::string_view part) const {
  Source source;
  if (const size_t star = part.find('*'); star != part.npos) {
    if (!absl::SimpleAtoi(part.substr(0, star), &source.weight) || source.weight == 0) {
      return Malformed(text_);
    }
    part.remove_prefix(star + 1);
  }
  if (absl::ConsumePrefix(&part, "fixed:")) {
    if (!absl::SimpleAtoi(part, &source.max) || source.max == 0) return Malformed(text_);
    source.min = source.max;
  } else if (absl::ConsumePrefix(&part, "uniform:")) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &source.min) ||
        !absl::SimpleAtoi(ends[1], &source.max) || source.min == 0 || source.min > source.max) {
      return Malformed(text_);
    }
  } else if (absl::ConsumePrefix(&part, "file:")) {
    CLIENT_ASSIGN_OR_RETURN(source.listed, ReadRecorded(part));
    source.max = *std::max_element(source.listed.begin(), source.listed.end());
  } else {
    return Malformed(text_);
  }
  return source;
}

absl::StatusOr<Lengths> Lengths::Parse(absl::string_view text, uint64_t seed) {
  Lengths lengths(text, seed);
  // A file's name may hold a plus: one file alone is no mix.
  const std::vector<absl::string_view> parts = absl::StartsWith(text, "file:")
                                                   ? std::vector<absl::string_view>{text}
                                                   : absl::StrSplit(text, '+');
  for (const absl::string_view part : parts) {
    CLIENT_ASSIGN_OR_RETURN(Source source, lengths.ParseSource(part));
    lengths.weights_ += source.weight;
    lengths.max_ = std::max(lengths.max_, source.max);
    lengths.sources_.push_back(std::move(source));
  }
  return lengths;
}

// Not std::uniform_int_distribution: a seed gives the same lengths with every standard library.
uint64_t Lengths::Below(uint64_t choices) { return choices == 1 ? 0 : random_() % choices; }

uint32_t Lengths::Next() {
  Source* source = &sources_.front();
  if (sources_.size() > 1) {
    for (uint64_t at = Below(weights_); at >= source->weight; ++source) at -= source->weight;
  }
  if (!source->listed.empty()) return source->listed[source->next++ % source->listed.size()];
  return source->min + static_cast<uint32_t>(Below(uint64_t{source->max} - source->min + 1));
}

}  // namespace headwise::client
