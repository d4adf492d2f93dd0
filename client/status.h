// SPDX-License-Identifier: Apache-2.0
// Errors of the client: absl::Status everywhere, and how the programs print it.
#ifndef HEADWISE_CLIENT_STATUS_H_
#define HEADWISE_CLIENT_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise::client {

// Exit codes of the programs.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // refused, unreadable, RPC failed
inline constexpr int kExitUsage = 2;   // the command line's grammar, nothing else
inline constexpr int kExitNotMet = 3;  // audit or threshold not met

// An error of the command line's grammar; `text` says what is wrong, in one line.
absl::Status UsageError(absl::string_view text);
bool IsUsageError(const absl::Status& status);

// "PROGRAM: CODE: message", or "PROGRAM: message" for a usage error. Always one line, no newline at
// the end: line breaks and other control characters of the message become spaces.
std::string ErrorLine(absl::string_view program, const absl::Status& status);

// The exit code that goes with a status.
int ExitCodeOf(const absl::Status& status);

}  // namespace headwise::client

#define CLIENT_RETURN_IF_ERROR(expression)                              \
  do {                                                                  \
    if (absl::Status status_macro = (expression); !status_macro.ok()) { \
      return status_macro;                                              \
    }                                                                   \
  } while (false)

#define CLIENT_CONCAT_INNER(a, b) a##b
#define CLIENT_CONCAT(a, b) CLIENT_CONCAT_INNER(a, b)
#define CLIENT_ASSIGN_OR_RETURN(target, expression) \
  CLIENT_ASSIGN_OR_RETURN_INNER(CLIENT_CONCAT(status_or_, __LINE__), target, expression)
#define CLIENT_ASSIGN_OR_RETURN_INNER(temporary, target, expression) \
  auto temporary = (expression);                                     \
  if (!temporary.ok()) return temporary.status();                    \
  target = *std::move(temporary)

#endif  // HEADWISE_CLIENT_STATUS_H_
