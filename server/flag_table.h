// SPDX-License-Identifier: Apache-2.0
// Every flag of headwise-server, once: its name, where its value goes, its bounds, its help. What
// is no field of server_config.proto too, but config, help and version, fails flags_test.
#ifndef HEADWISE_SERVER_FLAG_TABLE_H_
#define HEADWISE_SERVER_FLAG_TABLE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/options.h"

namespace headwise {

using FlagMember =
    std::variant<std::string ServerOptions::*, int64_t ServerOptions::*,
                 std::optional<int64_t> ServerOptions::*, bool ServerOptions::*,
                 absl::Duration ServerOptions::*, KernelPath ServerOptions::*,
                 LogLevel ServerOptions::*, std::vector<StartupLayer> ServerOptions::*>;

struct Flag {
  const char* name;
  const char* value;  // how --help writes the value; "" for a switch
  FlagMember member;
  const char* help;
  int64_t low = 0;  // of a number
  int64_t high = std::numeric_limits<int64_t>::max();
  const char* unit = "";  // of a number that ServerInfo lists as a limit
};

struct FlagGroup {
  const char* title;
  std::vector<Flag> flags;
};

// In the order of --help.
const std::vector<FlagGroup>& FlagGroups();

}  // namespace headwise

#endif  // HEADWISE_SERVER_FLAG_TABLE_H_
