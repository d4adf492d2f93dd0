// SPDX-License-Identifier: Apache-2.0
// The file of `headwise-server --config`, and the flags that it becomes.
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/config_file.h"
#include "server/flag_table.h"
#include "server/flags.h"
#include "tests/fuzz/fuzz.h"

namespace headwise {
namespace {

bool SameValue(const Flag& flag, const ServerOptions& a, const ServerOptions& b) {
  return std::visit(
      [&a, &b](auto member) {
        using Layers = std::vector<StartupLayer> ServerOptions::*;
        if constexpr (std::is_same_v<decltype(member), Layers>) {
          return (a.*member).size() == (b.*member).size();
        } else {
          return a.*member == b.*member;
        }
      },
      flag.member);
}

// A file means what the command line would with the same flags.
void CheckAgainstCommandLine(const std::vector<ConfigSetting>& settings) {
  ServerOptions options;
  const absl::Status applied = ApplyConfig(settings, &options);
  if (!applied.ok()) CheckRefusal(applied);
  std::vector<std::string> arguments;
  for (const ConfigSetting& setting : settings) {
    arguments.push_back(absl::StrCat("--", setting.flag, "=", setting.value));
  }
  const absl::StatusOr<ServerOptions> given = ParseFlags(arguments);
  CHECK_EQ(given.ok(), applied.ok()) << applied << " " << given.status();
  if (!given.ok()) return;
  for (const FlagGroup& group : FlagGroups()) {
    for (const Flag& flag : group.flags) CHECK(SameValue(flag, options, *given)) << flag.name;
  }
  PlantFault(options.threads.value_or(0) > 64);
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto settings = headwise::ParseConfig(text, "config");
  if (settings.ok()) {
    headwise::CheckAgainstCommandLine(*settings);
  } else {
    headwise::CheckRefusal(settings.status());
  }
  return 0;
}
