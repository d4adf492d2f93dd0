// SPDX-License-Identifier: Apache-2.0
#include "server/flags.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/cgroup.h"
#include "core/format/file.h"

namespace headwise {
namespace {

const Flag* FindFlag(absl::string_view name) {
  for (const FlagGroup& group : FlagGroups()) {
    for (const Flag& flag : group.flags) {
      if (name == flag.name) return &flag;
    }
  }
  return nullptr;
}

absl::Status Invalid(const Flag& flag, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.name, ": ", rule, "; was ", Printable(was)));
}

absl::Status NeedsValue(const Flag& flag) {
  return Invalid(flag, absl::StrCat("needs a value, ", flag.value), "nothing");
}

// An integer; the flags that count bytes also take KiB, MiB and GiB.
absl::StatusOr<int64_t> ParseNumber(const Flag& flag, absl::string_view text) {
  absl::string_view digits = text;
  int shift = 0;
  if (absl::EndsWith(flag.name, "-bytes")) {
    if (absl::ConsumeSuffix(&digits, "KiB"))
      shift = 10;
    else if (absl::ConsumeSuffix(&digits, "MiB"))
      shift = 20;
    else if (absl::ConsumeSuffix(&digits, "GiB"))
      shift = 30;
  }
  int64_t value = 0;
  const bool number = !digits.empty() && absl::ascii_isdigit(digits[0]) &&
                      absl::SimpleAtoi(digits, &value) && value <= (flag.high >> shift);
  if (!number || (value << shift) < flag.low) {
    return Invalid(flag, absl::StrFormat("must be an integer from %d to %d", flag.low, flag.high),
                   text);
  }
  return value << shift;
}

absl::StatusOr<KernelPath> ParseKernel(const Flag& flag, absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  if (lower == "auto") return KernelPath::kAuto;
  if (lower == "brgemm") return KernelPath::kBrgemm;
  if (lower == "primitive") return KernelPath::kPrimitive;
  return Invalid(flag, "must be auto, brgemm or primitive", text);
}

absl::StatusOr<LogLevel> ParseLevel(const Flag& flag, absl::string_view text) {
  const std::optional<LogLevel> level = ParseLogLevel(text);
  if (level.has_value()) return *level;
  return Invalid(flag, "must be error, warning, info or debug", text);
}

absl::StatusOr<absl::Duration> ParseTime(const Flag& flag, absl::string_view text) {
  absl::Duration value;
  if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration() ||
      value > absl::Hours(24 * 365)) {
    return Invalid(flag, "must be a duration such as 30s, 1m30s or 500ms", text);
  }
  return value;
}

absl::StatusOr<bool> ParseSwitch(const Flag& flag, absl::string_view text) {
  bool value = false;
  if (!absl::SimpleAtob(text, &value)) return Invalid(flag, "must be true or false", text);
  return value;
}

template <typename T>
absl::StatusOr<T> ParseValue(const Flag& flag, absl::string_view text) {
  if constexpr (std::is_same_v<T, std::string>) {
    return std::string(text);
  } else if constexpr (std::is_same_v<T, bool>) {
    return ParseSwitch(flag, text);
  } else if constexpr (std::is_same_v<T, absl::Duration>) {
    return ParseTime(flag, text);
  } else if constexpr (std::is_same_v<T, KernelPath>) {
    return ParseKernel(flag, text);
  } else if constexpr (std::is_same_v<T, LogLevel>) {
    return ParseLevel(flag, text);
  } else {
    return ParseNumber(flag, text);
  }
}

absl::Status Store(const Flag& flag, absl::string_view text,
                   std::vector<StartupLayer> ServerOptions::* member, ServerOptions* options) {
  absl::StatusOr<StartupLayer> layer = ParseStartupLayer(text);
  if (!layer.ok()) return Invalid(flag, layer.status().message(), text);
  (options->*member).push_back(*std::move(layer));
  return absl::OkStatus();
}

template <typename T>
absl::Status Store(const Flag& flag, absl::string_view text, T ServerOptions::* member,
                   ServerOptions* options) {
  absl::StatusOr<T> value = ParseValue<T>(flag, text);
  if (!value.ok()) return value.status();
  options->*member = *std::move(value);
  return absl::OkStatus();
}

absl::Status SetFlag(const Flag& flag, absl::string_view text, ServerOptions* options) {
  // Only a file can hold one, and what takes paths as C strings would end there.
  if (absl::StrContains(text, '\0')) return Invalid(flag, "must not hold a NUL", text);
  return std::visit([&](auto member) { return Store(flag, text, member, options); }, flag.member);
}

bool IsSwitch(const Flag& flag) {
  return std::holds_alternative<bool ServerOptions::*>(flag.member);
}

std::string Show(const std::string& value) { return value; }
std::string Show(int64_t value) { return absl::StrCat(value); }
std::string Show(std::optional<int64_t> value) { return value ? Show(*value) : ""; }
std::string Show(bool value) { return value ? "true" : "false"; }
std::string Show(absl::Duration value) { return absl::FormatDuration(value); }
std::string Show(KernelPath) { return "auto"; }
std::string Show(LogLevel level) { return LogLevelName(level); }
std::string Show(const std::vector<StartupLayer>&) { return ""; }

// The flag that `argument` names, whether it was written --noNAME, and the text after "=".
struct Written {
  const Flag* flag = nullptr;
  bool negated = false;
  std::optional<std::string> value;
};

absl::StatusOr<Written> ReadArgument(absl::string_view argument) {
  absl::string_view rest = argument;
  if (!absl::ConsumePrefix(&rest, "--") || rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("arguments: only flags are taken, see --help; was ", Printable(argument)));
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits('=', 1));
  Written written;
  if (absl::StrContains(rest, '=')) written.value = std::string(parts.second);
  absl::string_view name = parts.first;
  written.flag = FindFlag(name);
  if (written.flag == nullptr && absl::ConsumePrefix(&name, "no") && !written.value.has_value()) {
    const Flag* flag = FindFlag(name);
    if (flag != nullptr && IsSwitch(*flag)) written = {flag, true, std::nullopt};
  }
  if (written.flag == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("arguments: no such flag, see --help; was --", Printable(parts.first)));
  }
  return written;
}

// A flag with its value's text.
struct Setting {
  const Flag* flag = nullptr;
  std::string value;
};

absl::StatusOr<std::vector<Setting>> ReadArguments(const std::vector<std::string>& arguments) {
  std::vector<Setting> settings;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::StatusOr<Written> written = ReadArgument(arguments[i]);
    if (!written.ok()) return written.status();
    const Flag& flag = *written->flag;
    if (!written->value.has_value()) {
      if (IsSwitch(flag)) {
        written->value = written->negated ? "false" : "true";
      } else if (++i < arguments.size()) {
        written->value = arguments[i];
      } else {
        return NeedsValue(flag);
      }
    }
    settings.push_back({&flag, *std::move(written->value)});
  }
  return settings;
}

absl::Status ApplyConfigFile(const Setting& config, ServerOptions* options) {
  if (config.value.empty()) return NeedsValue(*config.flag);
  const absl::StatusOr<std::vector<ConfigSetting>> settings = ReadConfig(config.value);
  const absl::Status status = settings.ok() ? ApplyConfig(*settings, options) : settings.status();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--", config.flag->name, ": ", status.message()));
}

}  // namespace

std::string FlagDefault(const Flag& flag) {
  static const ServerOptions defaults;
  return std::visit([](auto member) { return Show(defaults.*member); }, flag.member);
}

absl::StatusOr<StartupLayer> ParseStartupLayer(absl::string_view text) {
  const absl::Status refused = absl::InvalidArgumentError("must be NAME=DIR:LAYER[:DTYPE]");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::vector<std::string> place = absl::StrSplit(parts.second, ':');
  if (parts.first.empty() || place.size() < 2 || place.size() > 3) return refused;
  StartupLayer layer{.name = std::string(parts.first),
                     .dir = place[0],
                     .layer = place[1],
                     .dtype = place.size() == 3 ? absl::AsciiStrToLower(place[2]) : "f32"};
  if (layer.dir.empty() || layer.layer.empty()) return refused;
  if (layer.dtype != "f32" && layer.dtype != "bf16" && layer.dtype != "int8") return refused;
  return layer;
}

absl::StatusOr<ServerOptions> ParseFlags(const std::vector<std::string>& arguments) {
  const absl::StatusOr<std::vector<Setting>> settings = ReadArguments(arguments);
  if (!settings.ok()) return settings.status();
  ServerOptions options;
  const auto config = std::find_if(settings->rbegin(), settings->rend(), [](const Setting& s) {
    return s.flag->name == absl::string_view("config");
  });
  if (config != settings->rend()) {
    if (absl::Status read = ApplyConfigFile(*config, &options); !read.ok()) return read;
  }
  for (const auto& [flag, value] : *settings) {
    if (absl::Status set = SetFlag(*flag, value, &options); !set.ok()) return set;
  }
  return options;
}

absl::Status ApplyConfig(const std::vector<ConfigSetting>& settings, ServerOptions* options) {
  for (const ConfigSetting& setting : settings) {
    const Flag* const flag = FindFlag(setting.flag);
    CHECK(flag != nullptr) << setting.flag;  // a field of server_config.proto is a flag's
    if (absl::Status set = SetFlag(*flag, setting.value, options); !set.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(setting.where, ": ", set.message()));
    }
  }
  return absl::OkStatus();
}

std::string FlagsHelp() {
  std::string help =
      "headwise-server: keeps attention layers in memory and serves forward and ablation "
      "requests.\n"
      "\nUsage: headwise-server [--flag=value | --flag value | --[no]switch]...\n";
  for (const FlagGroup& group : FlagGroups()) {
    absl::StrAppend(&help, "\n", group.title, ":\n");
    for (const Flag& flag : group.flags) {
      const std::string left = IsSwitch(flag) ? absl::StrCat("--", flag.name)
                                              : absl::StrCat("--", flag.name, " ", flag.value);
      const std::string shown = FlagDefault(flag);
      absl::StrAppendFormat(&help, "  %-33s %s%s\n", left, flag.help,
                            shown.empty() ? "" : absl::StrCat(" (default ", shown, ")"));
    }
  }
  return help +
         "\nByte counts may end in KiB, MiB or GiB. SIGTERM drains, a second one ends at once; "
         "SIGUSR1 "
         "logs more, SIGUSR2 less.\n";
}

EngineOptions MakeEngineOptions(const ServerOptions& options) {
  EngineOptions engine;
  engine.threads = options.threads;
  engine.kernel = options.kernel;
  engine.limits.max_batch_requests = options.max_batch_requests;
  engine.limits.max_batch_tokens = options.max_batch_tokens;
  engine.pin_threads = options.pin_threads;
  engine.batch_delay = options.batch_delay;
  engine.limits.queue_tokens = options.queue_tokens;
  engine.limits.queue_bytes = options.queue_bytes;
  engine.limits.layer_queue_tokens = options.layer_queue_tokens;
  engine.limits.client_queue_tokens = options.client_queue_tokens;
  engine.limits.client_queue_requests = options.client_queue_requests;
  engine.limits.layer_budget_bytes =
      options.layer_budget_bytes > 0 ? options.layer_budget_bytes : MemoryLimitBytes({}) / 2;
  engine.limits.max_tokens = options.max_tokens;
  engine.limits.max_heads = options.max_heads;
  engine.limits.max_output_bytes = options.max_output_bytes;
  engine.limits.max_sequences = options.max_sequences;
  engine.limits.max_ablations = options.max_ablations;
  return engine;
}

std::vector<FlagLimit> FlagLimits(const ServerOptions& options) {
  std::vector<FlagLimit> limits;
  for (const FlagGroup& group : FlagGroups()) {
    for (const Flag& flag : group.flags) {
      const std::string name = absl::StrCat("--", flag.name);
      if (const auto* number = std::get_if<int64_t ServerOptions::*>(&flag.member)) {
        limits.push_back({name, options.**number, flag.unit});
      } else if (const auto* time = std::get_if<absl::Duration ServerOptions::*>(&flag.member)) {
        limits.push_back({name, absl::ToInt64Milliseconds(options.**time), "millisecond"});
      }
    }
  }
  return limits;
}

}  // namespace headwise
