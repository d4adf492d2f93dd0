// SPDX-License-Identifier: Apache-2.0
// The command line's grammar: flags anywhere, "--flag value" or "--flag=value", "--" ends them.
#ifndef HEADWISE_CLIENT_FLAGS_H_
#define HEADWISE_CLIENT_FLAGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace headwise::client {

// One flag. `value` names its value in the help text; empty: a switch without a value.
struct Flag {
  absl::string_view name;  // without the dashes
  absl::string_view value;
  absl::string_view help;
};

// A parsed command line. Getters return the fallback (or nullopt) where the flag is absent and a
// usage error that names the flag where its text is malformed. Immutable; thread-safe.
class Args {
 public:
  // Usage error: an unknown flag, one given twice, a value missing or not wanted.
  static absl::StatusOr<Args> Parse(absl::Span<const std::string> words,
                                    absl::Span<const Flag> flags);

  // The same with another value of one flag.
  Args With(absl::string_view flag, const std::string& value) const;

  const std::vector<std::string>& positional() const { return positional_; }
  bool Has(absl::string_view flag) const { return values_.contains(std::string(flag)); }
  std::string Text(absl::string_view flag, absl::string_view fallback = "") const;
  // The value's place in `choices`; a usage error lists them.
  absl::StatusOr<size_t> Choice(absl::string_view flag, absl::Span<const absl::string_view> choices,
                                size_t fallback) const;
  absl::StatusOr<std::optional<uint32_t>> Uint(absl::string_view flag) const;
  // An integer of either sign.
  absl::StatusOr<std::optional<int32_t>> Int(absl::string_view flag) const;
  // At most 128 printable ASCII characters, which is what a header takes; empty where absent.
  absl::StatusOr<std::string> ClientId(absl::string_view flag) const;
  absl::StatusOr<std::optional<double>> Number(absl::string_view flag) const;  // finite
  absl::StatusOr<std::vector<uint32_t>> UintList(absl::string_view flag) const;
  // "30s", "500ms", "1m30s"; longer than zero, at most 1000h.
  absl::StatusOr<absl::Duration> Time(absl::string_view flag, absl::Duration fallback) const;

 private:
  std::vector<std::string> positional_;
  std::map<std::string, std::string> values_;
};

// The help text's lines for `flags`, aligned.
std::string DescribeFlags(absl::Span<const Flag> flags);

// A help text as a section of the reference page (docs/commands.md).
std::string MarkdownSection(absl::string_view title, absl::string_view help);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_FLAGS_H_
