// SPDX-License-Identifier: Apache-2.0
// How much the server logs. The level can change while it runs.
#ifndef HEADWISE_SERVER_LOGGING_H_
#define HEADWISE_SERVER_LOGGING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace headwise {

// Each logs what those before it do, and more. At kDebug every call has a line.
enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };

std::string LogLevelName(LogLevel level);
std::optional<LogLevel> ParseLogLevel(absl::string_view name);

// Thread-safe, as the rest.
void SetLogLevel(LogLevel level);
LogLevel CurrentLogLevel();

// One level up or down, at most to the ends; says so at any level.
void StepLogLevel(bool more);

}  // namespace headwise

#endif  // HEADWISE_SERVER_LOGGING_H_
