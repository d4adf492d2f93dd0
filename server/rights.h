// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_RIGHTS_H_
#define HEADWISE_SERVER_RIGHTS_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace headwise {

// What a caller may do; each includes those before it.
enum class Right : uint8_t {
  kNone,     // health only
  kForward,  // forwards, and what is said about the server and its layers
  kAnalyze,  // ablations, analyses, audits
  kAdmin,    // load, unload, derive, save and fetch layers
};

// "none", "forward", "analyze", "admin".
const char* RightName(Right right);
// Of a token: any but kNone.
std::optional<Right> ParseRight(absl::string_view name);

// What a call needs, by its path "/package.Service/Method". Health needs nothing, since probes
// carry no tokens; reflection kForward, as does the Open Inference Protocol but for loading and
// unloading; a method of headwise.v1 that isn't listed kAdmin.
Right RightFor(absl::string_view path);

}  // namespace headwise

#endif  // HEADWISE_SERVER_RIGHTS_H_
