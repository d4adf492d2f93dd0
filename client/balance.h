// SPDX-License-Identifier: Apache-2.0
// How a client's calls spread over replicas of a server.
#ifndef HEADWISE_CLIENT_BALANCE_H_
#define HEADWISE_CLIENT_BALANCE_H_

#include <grpcpp/support/channel_arguments.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise::client {

// What gRPC resolves: a list "10.0.0.1:8500,10.0.0.2:8500" becomes its ipv4: or ipv6: form,
// anything else (HOST:PORT, dns:///HOST:PORT, unix:PATH) stays. INVALID_ARGUMENT for a list that
// holds a name: only addresses go into a list, several names are DNS's business.
absl::StatusOr<std::string> ResolvableTarget(absl::string_view target);

// Calls take turns over all addresses that the target stands for. For a list of addresses and for
// dns:/// names one whose health service doesn't say SERVING gets none, so that a replica that
// drains or still loads is left out before it refuses. A HOST:PORT is asked whatever its health:
// mostly there is no other.
void BalanceCalls(absl::string_view resolvable, grpc::ChannelArguments* arguments);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_BALANCE_H_
