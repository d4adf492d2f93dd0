// SPDX-License-Identifier: Apache-2.0
#include "core/base/rules.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace headwise {

absl::Status Invalid(absl::string_view field, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule, "; was ", was));
}

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxPlainNameBytes && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace headwise
