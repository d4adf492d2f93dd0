// SPDX-License-Identifier: Apache-2.0
#include "client/flags.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/status.h"

namespace headwise::client {
namespace {

absl::Status Malformed(absl::string_view flag, absl::string_view rule, absl::string_view text) {
  return UsageError(absl::StrCat("--", flag, ": ", rule, "; was \"", text, "\""));
}

const Flag* FindFlag(absl::Span<const Flag> flags, absl::string_view name) {
  const auto found = std::find_if(flags.begin(), flags.end(),
                                  [name](const Flag& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<Args> Args::Parse(absl::Span<const std::string> words,
                                 absl::Span<const Flag> flags) {
  Args args;
  bool only_positional = false;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (only_positional || !absl::StartsWith(word, "-") || word == "-") {
      args.positional_.emplace_back(word);
      continue;
    }
    if (word == "--") {
      only_positional = true;
      continue;
    }
    if (!absl::StartsWith(word, "--")) return UsageError(absl::StrCat("unknown flag ", word));
    const size_t equals = word.find('=');
    const absl::string_view name = word.substr(2, equals == word.npos ? word.npos : equals - 2);
    const Flag* flag = FindFlag(flags, name);
    if (flag == nullptr) return UsageError(absl::StrCat("unknown flag --", name));
    std::string value;
    if (flag->value.empty()) {
      if (equals != word.npos) return UsageError(absl::StrCat("--", name, " takes no value"));
    } else if (equals != word.npos) {
      value = std::string(word.substr(equals + 1));
    } else if (i + 1 < words.size() && !absl::StartsWith(words[i + 1], "--")) {
      value = words[++i];
    } else {
      return UsageError(absl::StrCat("--", name, " needs a value: ", flag->value));
    }
    if (!args.values_.emplace(std::string(name), std::move(value)).second) {
      return UsageError(absl::StrCat("--", name, " is given twice"));
    }
  }
  return args;
}

Args Args::With(absl::string_view flag, const std::string& value) const {
  Args args = *this;
  args.values_[std::string(flag)] = value;
  return args;
}

std::string Args::Text(absl::string_view flag, absl::string_view fallback) const {
  const auto found = values_.find(std::string(flag));
  return found == values_.end() ? std::string(fallback) : found->second;
}

absl::StatusOr<size_t> Args::Choice(absl::string_view flag,
                                    absl::Span<const absl::string_view> choices,
                                    size_t fallback) const {
  if (!Has(flag)) return fallback;
  const std::string text = Text(flag);
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    return Malformed(flag, absl::StrCat("must be one of ", absl::StrJoin(choices, ", ")), text);
  }
  return static_cast<size_t>(found - choices.begin());
}

absl::StatusOr<std::optional<uint32_t>> Args::Uint(absl::string_view flag) const {
  if (!Has(flag)) return std::nullopt;
  uint32_t number = 0;
  if (!absl::SimpleAtoi(Text(flag), &number)) {
    return Malformed(flag, "must be a whole number, 0 or more", Text(flag));
  }
  return number;
}

absl::StatusOr<std::optional<int32_t>> Args::Int(absl::string_view flag) const {
  if (!Has(flag)) return std::optional<int32_t>();
  int32_t value = 0;
  if (!absl::SimpleAtoi(Text(flag), &value)) {
    return Malformed(flag, "must be an integer of 32 bits", Text(flag));
  }
  return std::optional<int32_t>(value);
}

absl::StatusOr<std::string> Args::ClientId(absl::string_view flag) const {
  const std::string id = Text(flag);
  if (id.size() <= 128 && std::all_of(id.begin(), id.end(), absl::ascii_isprint)) return id;
  return Malformed(flag, "must be at most 128 printable ASCII characters", id);
}

absl::StatusOr<std::optional<double>> Args::Number(absl::string_view flag) const {
  if (!Has(flag)) return std::nullopt;
  double number = 0;
  if (!absl::SimpleAtod(Text(flag), &number) || !std::isfinite(number)) {
    return Malformed(flag, "must be a finite number", Text(flag));
  }
  return number;
}

absl::StatusOr<std::vector<uint32_t>> Args::UintList(absl::string_view flag) const {
  std::vector<uint32_t> numbers;
  if (!Has(flag)) return numbers;
  for (absl::string_view part : absl::StrSplit(Text(flag), ',')) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(part, &number)) {
      return Malformed(flag, "must be whole numbers with commas, like 0,3", Text(flag));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<absl::Duration> Args::Time(absl::string_view flag, absl::Duration fallback) const {
  if (!Has(flag)) return fallback;
  absl::Duration duration;
  // The upper end keeps deadlines within what a clock can show.
  if (!absl::ParseDuration(Text(flag), &duration) || duration <= absl::ZeroDuration() ||
      duration > absl::Hours(1000)) {
    return Malformed(flag, "must be a time with its unit, like 30s, above 0 and up to 1000h",
                     Text(flag));
  }
  return duration;
}

std::string DescribeFlags(absl::Span<const Flag> flags) {
  std::vector<std::string> left;
  size_t width = 0;
  for (const Flag& flag : flags) {
    left.push_back(absl::StrCat("  --", flag.name, flag.value.empty() ? "" : " ", flag.value));
    width = std::max(width, left.back().size());
  }
  width = std::min<size_t>(width, 38);
  std::string text;
  for (size_t i = 0; i < left.size(); ++i) {
    const size_t pad = left[i].size() <= width ? width - left[i].size() : 0;
    absl::StrAppend(&text, left[i], std::string(pad + 2, ' '), flags[i].help, "\n");
  }
  return text;
}

std::string MarkdownSection(absl::string_view title, absl::string_view help) {
  return absl::StrCat("## ", title, "\n\n```text\n", help, "```\n\n");
}

}  // namespace headwise::client
