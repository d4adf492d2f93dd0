// SPDX-License-Identifier: Apache-2.0
// How a broken rule is told, and a rule that several requests share. Pure; thread-safe.
#ifndef HEADWISE_CORE_BASE_RULES_H_
#define HEADWISE_CORE_BASE_RULES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace headwise {

// INVALID_ARGUMENT "field: rule; was VALUE".
absl::Status Invalid(absl::string_view field, absl::string_view rule, absl::string_view was);

// [A-Za-z0-9._-]{1,128} without a leading dot: names of layers, and of files that they are saved
// to.
bool IsPlainName(absl::string_view name);
inline constexpr size_t kMaxPlainNameBytes = 128;

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_RULES_H_
