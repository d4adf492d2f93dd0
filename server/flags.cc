// SPDX-License-Identifier: Apache-2.0
#include "server/flags.h"

#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace headwise {
namespace {

using Member = std::variant<std::string ServerOptions::*, int64_t ServerOptions::*,
                            std::optional<int64_t> ServerOptions::*, bool ServerOptions::*,
                            absl::Duration ServerOptions::*, KernelPath ServerOptions::*,
                            std::vector<StartupLayer> ServerOptions::*>;

struct Flag {
  const char* name;
  const char* value;  // how --help writes the value; "" for a switch
  Member member;
  const char* help;
  int64_t low = 0;  // of a number
  int64_t high = std::numeric_limits<int64_t>::max();
  const char* unit = "";  // of a number that ServerInfo lists as a limit
};

struct FlagGroup {
  const char* title;
  std::vector<Flag> flags;
};

// protobuf's ceiling for one message, less room for what surrounds the tensor bytes.
constexpr int64_t kMessageCeiling = (int64_t{2} << 30) - (int64_t{1} << 20);

const std::vector<FlagGroup>& Groups() {
  using O = ServerOptions;
  static const auto* const groups = new std::vector<FlagGroup>{
      {"Listen",
       {{"listen", "HOST:PORT", &O::listen, "gRPC; port 0: the system chooses, and it is printed"},
        {"reflection", "", &O::reflection, "serve gRPC server reflection"}}},
      {"Layers",
       {{"repository", "DIR", &O::repository, "folder of the checkpoints that can be loaded"},
        {"load", "NAME=DIR:LAYER[:DTYPE]", &O::loads,
         "load a layer before the server is ready; may be repeated"},
        {"demo", "", &O::demo,
         "load two-head and two-head-unequal, and minilm and smollm2 where the repository has "
         "them"},
        {"demo-layer", "[PART.]I", &O::demo_layer, "which layer of minilm --demo loads"},
        {"save-dir", "DIR", &O::save_dir, "folder that SaveLayer writes to; without it it is off"},
        {"max-upload-bytes", "BYTES", &O::max_upload_bytes, "all uploads under way together", 1,
         int64_t{1} << 50, "byte"},
        {"upload-timeout", "DURATION", &O::upload_timeout, "from an upload's first message on"}}},
      {"Compute",
       {{"threads", "N", &O::threads,
         "compute threads; else OMP_NUM_THREADS, else CPU quota, cpuset and affinity", 1, 1024},
        {"kernel", "auto|brgemm|primitive", &O::kernel, "force a kernel path"},
        {"max-batch-requests", "N", &O::max_batch_requests,
         "requests in one pass; 0: no limit, 1: no batching", 0, 1 << 20, "request"},
        {"max-batch-tokens", "N", &O::max_batch_tokens,
         "query tokens in one pass; a larger request rides alone", 1, 1 << 30, "token"}}},
      {"Limits",
       {{"queue-tokens", "N", &O::queue_tokens, "query tokens waiting, over all layers", 1,
         int64_t{1} << 40, "token"},
        {"max-message-bytes", "BYTES", &O::max_message_bytes, "one request", 1024, kMessageCeiling,
         "byte"},
        {"max-output-bytes", "BYTES", &O::max_output_bytes, "returned tensors of one request", 1024,
         kMessageCeiling, "byte"},
        {"request-budget-bytes", "BYTES", &O::request_budget_bytes,
         "requests being received, all together", 1 << 20, int64_t{1} << 50, "byte"},
        {"max-sequences", "N", &O::max_sequences, "sequences of one request", 1, 1 << 30,
         "sequence"},
        {"max-ablations", "N", &O::max_ablations, "ablations of one request", 1, 1 << 24,
         "ablation"},
        {"grace", "DURATION", &O::grace, "what accepted calls get to end after SIGTERM"}}},
      {"Observability",
       {{"metrics", "HOST:PORT", &O::metrics,
         "HTTP: /metrics, /healthz, /readyz; empty: none, port 0: the system chooses"}}},
      {"Other",
       {{"help", "", &O::help, "print this and exit"},
        {"version", "", &O::version, "print the version and exit"}}},
  };
  return *groups;
}

const Flag* FindFlag(absl::string_view name) {
  for (const FlagGroup& group : Groups()) {
    for (const Flag& flag : group.flags) {
      if (name == flag.name) return &flag;
    }
  }
  return nullptr;
}

absl::Status Invalid(const Flag& flag, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag.name, ": ", rule, "; was ", was));
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
std::string Show(const std::vector<StartupLayer>&) { return ""; }

std::string DefaultText(const Flag& flag) {
  static const ServerOptions defaults;
  return std::visit([](auto member) { return Show(defaults.*member); }, flag.member);
}

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
        absl::StrCat("arguments: only flags are taken, see --help; was ", argument));
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
        absl::StrCat("arguments: no such flag, see --help; was --", parts.first));
  }
  return written;
}

}  // namespace

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
  ServerOptions options;
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
        return Invalid(flag, absl::StrCat("needs a value, ", flag.value), "nothing");
      }
    }
    if (absl::Status set = SetFlag(flag, *written->value, &options); !set.ok()) return set;
  }
  return options;
}

std::string FlagsHelp() {
  std::string help =
      "headwise-server: keeps attention layers in memory and serves forward and ablation "
      "requests.\n"
      "\nUsage: headwise-server [--flag=value | --flag value | --[no]switch]...\n";
  for (const FlagGroup& group : Groups()) {
    absl::StrAppend(&help, "\n", group.title, ":\n");
    for (const Flag& flag : group.flags) {
      const std::string left = IsSwitch(flag) ? absl::StrCat("--", flag.name)
                                              : absl::StrCat("--", flag.name, " ", flag.value);
      const std::string shown = DefaultText(flag);
      absl::StrAppendFormat(&help, "  %-33s %s%s\n", left, flag.help,
                            shown.empty() ? "" : absl::StrCat(" (default ", shown, ")"));
    }
  }
  return help +
         "\nByte counts may end in KiB, MiB or GiB. SIGTERM drains, a second one ends at once.\n";
}

EngineOptions MakeEngineOptions(const ServerOptions& options) {
  EngineOptions engine;
  engine.threads = options.threads;
  engine.kernel = options.kernel;
  engine.limits.max_batch_requests = options.max_batch_requests;
  engine.limits.max_batch_tokens = options.max_batch_tokens;
  engine.limits.queue_tokens = options.queue_tokens;
  engine.limits.max_output_bytes = options.max_output_bytes;
  engine.limits.max_sequences = options.max_sequences;
  engine.limits.max_ablations = options.max_ablations;
  return engine;
}

std::vector<FlagLimit> FlagLimits(const ServerOptions& options) {
  std::vector<FlagLimit> limits;
  for (const FlagGroup& group : Groups()) {
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
