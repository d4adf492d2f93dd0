// SPDX-License-Identifier: Apache-2.0
// The file of --config: a ServerConfig (server_config.proto) in protobuf's text format. Functions
// keep no state and are thread-safe.
#ifndef HEADWISE_SERVER_CONFIG_FILE_H_
#define HEADWISE_SERVER_CONFIG_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise {

// A larger file is none of ours.
constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

// A flag that the file sets. Whether the value fits is the flag's to say (ApplyConfig, flags.h).
struct ConfigSetting {
  std::string flag;   // its name, without "--"
  std::string value;  // what would follow "--flag="
  std::string where;  // "FILE:LINE:COLUMN", counted from 1; "FILE" where the place isn't known
};

// What `text` sets, flags in the order of the .proto and the values of a repeated one in theirs.
// INVALID_ARGUMENT, in one line that begins with the place, for anything that is no ServerConfig.
// `path` is for messages.
absl::StatusOr<std::vector<ConfigSetting>> ParseConfig(absl::string_view text,
                                                       absl::string_view path);

// The same of a regular file. Statuses of core/format/file.h if it can't be read or is longer than
// kMaxConfigBytes.
absl::StatusOr<std::vector<ConfigSetting>> ReadConfig(const std::string& path);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CONFIG_FILE_H_
