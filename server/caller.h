// SPDX-License-Identifier: Apache-2.0
// What a call's metadata say about who makes it.
#ifndef HEADWISE_SERVER_CALLER_H_
#define HEADWISE_SERVER_CALLER_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/string_view.h"

namespace headwise {

// Whose share of the server the call uses: `headwise-client`, else the peer's address without its
// port ("127.0.0.1", "[::1]"), "unix" for a Unix socket, "in-process". A `headwise-client` longer
// than 128 characters is cut.
std::string ClientOf(const grpc::ServerContextBase& context);

// The address part of gRPC's "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711", "unix:…".
std::string HostOfPeer(absl::string_view peer);

// `traceparent` as W3C writes it, "00-32 hex-16 hex-2 hex"; "" if there is none such.
std::string TraceParentOf(const grpc::ServerContextBase& context);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CALLER_H_
