// SPDX-License-Identifier: Apache-2.0
// What the command lines say about TLS and tokens.
#ifndef HEADWISE_CLIENT_CHANNEL_SECURITY_H_
#define HEADWISE_CLIENT_CHANNEL_SECURITY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/flags.h"

namespace headwise::client {

// How a channel proves to whom it talks, and who talks. Texts in PEM.
struct ChannelSecurity {
  bool tls = false;
  std::string ca;           // who signs the server's certificate; empty: whom the system trusts
  std::string certificate;  // the caller's own; empty: none
  std::string key;
  std::string server_name;  // in the server's certificate, where it isn't the target's host
  std::string token;        // a bearer token; only with TLS or over a Unix socket
};

// --tls, --tls-ca, --tls-cert, --tls-key, --tls-name, --token-file.
const std::vector<Flag>& SecurityFlags();

// Usage error for flags that don't go together; what reading their files gives. Any of --tls-…
// means TLS.
absl::StatusOr<ChannelSecurity> ReadSecurity(const Args& args);

// INVALID_ARGUMENT for a token that would cross the network in the open.
absl::Status CheckSecurity(const std::string& target, const ChannelSecurity& security);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_CHANNEL_SECURITY_H_
