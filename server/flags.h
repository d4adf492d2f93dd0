// SPDX-License-Identifier: Apache-2.0
// The command line of headwise-server.
#ifndef HEADWISE_SERVER_FLAGS_H_
#define HEADWISE_SERVER_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config_file.h"
#include "server/flag_table.h"
#include "server/options.h"

namespace headwise {

// Reads the arguments after the program's name: --name=value, --name value, --name and --noname for
// switches. The file of --config comes before all of them, wherever --config stands, so that they
// win over it. INVALID_ARGUMENT, in one line, for an unknown flag, a value that doesn't fit, or
// anything that is no flag; statuses of ReadConfig.
absl::StatusOr<ServerOptions> ParseFlags(const std::vector<std::string>& arguments);

// Sets the flags that a config file sets. INVALID_ARGUMENT, in one line with the place in the file,
// for a value that doesn't fit; the settings before it are in `options` then.
absl::Status ApplyConfig(const std::vector<ConfigSetting>& settings, ServerOptions* options);

// All flags in groups, with their defaults.
std::string FlagsHelp();

// What --help prints as the flag's default; "" for none.
std::string FlagDefault(const Flag& flag);

// "NAME=DIR:LAYER[:DTYPE]".
absl::StatusOr<StartupLayer> ParseStartupLayer(absl::string_view text);

// What an engine needs of the options.
EngineOptions MakeEngineOptions(const ServerOptions& options);

// A limit with the flag that sets it, for ServerInfo.
struct FlagLimit {
  std::string flag;
  int64_t value = 0;
  std::string unit;  // byte, token, request, sequence, ablation, millisecond
};
std::vector<FlagLimit> FlagLimits(const ServerOptions& options);

}  // namespace headwise

#endif  // HEADWISE_SERVER_FLAGS_H_
