// SPDX-License-Identifier: Apache-2.0
// Where the gRPC server listens.
#ifndef HEADWISE_SERVER_LISTEN_H_
#define HEADWISE_SERVER_LISTEN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise {

// The addresses of --listen: HOST:PORT or unix:PATH, by commas, at least one. INVALID_ARGUMENT.
absl::StatusOr<std::vector<std::string>> ParseListen(absl::string_view flag,
                                                     absl::string_view text);

// The path of a unix: address; "" for HOST:PORT.
std::string UnixPath(absl::string_view address);

// Makes way for a socket at `path`: the file that a server which has gone left behind is removed.
// UNAVAILABLE if somebody answers there, or if it is no socket; nothing is removed then.
absl::Status ClearUnixSocket(const std::string& path);

}  // namespace headwise

#endif  // HEADWISE_SERVER_LISTEN_H_
