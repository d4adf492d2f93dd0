// SPDX-License-Identifier: Apache-2.0
// gRPC channels, call contexts and status codes, as the client and the load tester use them.
#ifndef HEADWISE_CLIENT_CHANNEL_H_
#define HEADWISE_CLIENT_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/channel_security.h"

namespace headwise::client {

// A channel without limits on message sizes, whose calls take turns over the target's addresses
// (client/balance.h). `own_connection`: one TCP connection, to one of them, which it never shares
// with another channel (gRPC otherwise lets channels of equal arguments share one).
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, bool own_connection,
                                           const ChannelSecurity& security);

// Sets the deadline (none for an infinite timeout) and, unless they are empty, `headwise-client`,
// whose share of the server the call uses, and the bearer token.
void PrepareContext(absl::Duration timeout, const std::string& client_id, const std::string& token,
                    grpc::ClientContext* context);

// The server's code and message. Where gRPC itself gives up, its words become "field: rule; was …",
// Lasting (client/retry.h) where nobody listens at the target, its name is unknown or TLS fails.
// CANCELLED becomes UNAVAILABLE (not for calls that the caller cancels itself), as does a call that
// gRPC on the server's side drops for want of memory.
absl::Status ToAbslStatus(grpc::StatusCode code, const std::string& message,
                          const std::string& target, absl::Duration timeout);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_CHANNEL_H_
