// SPDX-License-Identifier: Apache-2.0
#include "server/logging.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "absl/log/log.h"

namespace headwise {
namespace {

constexpr absl::string_view kNames[] = {"error", "warning", "info", "debug"};

std::atomic<LogLevel> g_level{LogLevel::kInfo};

}  // namespace

std::string LogLevelName(LogLevel level) { return std::string(kNames[static_cast<int>(level)]); }

std::optional<LogLevel> ParseLogLevel(absl::string_view name) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<LogLevel>(found - std::begin(kNames));
}

void SetLogLevel(LogLevel level) {
  g_level.store(level);
  absl::LogSeverityAtLeast least = absl::LogSeverityAtLeast::kInfo;
  if (level == LogLevel::kError) least = absl::LogSeverityAtLeast::kError;
  if (level == LogLevel::kWarning) least = absl::LogSeverityAtLeast::kWarning;
  absl::SetMinLogLevel(least);
}

LogLevel CurrentLogLevel() { return g_level.load(); }

void StepLogLevel(bool more) {
  const int now = static_cast<int>(CurrentLogLevel());
  const int next = std::clamp(more ? now + 1 : now - 1, 0, static_cast<int>(LogLevel::kDebug));
  const auto level = static_cast<LogLevel>(next);
  SetLogLevel(LogLevel::kInfo);  // so that the line below is seen
  LOG(INFO) << "log level " << LogLevelName(level);
  SetLogLevel(level);
}

}  // namespace headwise
