// SPDX-License-Identifier: Apache-2.0
// JSON from files that nobody vouches for. Thread-safe: pure functions.
#ifndef HEADWISE_CORE_FORMAT_STRICT_JSON_H_
#define HEADWISE_CORE_FORMAT_STRICT_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise {

// Nesting deeper than this is refused.
inline constexpr int kMaxJsonDepth = 64;

struct JsonRules {
  // Python writes NaN, Infinity and -Infinity bare; they are read as strings of that text.
  bool bare_nonfinite = false;
};

// Parses a whole text. DATA_LOSS: no JSON, a name twice in one object (readers differ in which one
// they keep), nesting too deep. `what` starts the message.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view what,
                                               JsonRules rules = {});

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_STRICT_JSON_H_
