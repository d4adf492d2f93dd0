// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_SECURITY_H_
#define HEADWISE_SERVER_SECURITY_H_

#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/options.h"

namespace headwise {

// Over what callers connect, and what they may do: TLS, callers' certificates, bearer tokens. All
// of it comes from files that are read again every second: what has changed and is right is used
// for new connections and calls from then on, what isn't right is logged and the old stays.
// Thread-safe.
class Security {
 public:
  // Told of each call that a token, or the lack of one, has ended.
  using OnDenied = std::function<void(const absl::Status&)>;

  // INVALID_ARGUMENT for flags that don't go together (tokens over TCP without TLS) and for files
  // that aren't right; what reading them gives.
  static absl::StatusOr<std::unique_ptr<Security>> Create(const ServerOptions& options,
                                                          OnDenied on_denied);
  virtual ~Security() = default;

  // For "HOST:PORT" or "unix:PATH". A Unix socket has no TLS: what it carries stays on the machine.
  // Must not outlive this.
  virtual std::shared_ptr<grpc::ServerCredentials> CredentialsFor(
      const std::string& address) const = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_SECURITY_H_
