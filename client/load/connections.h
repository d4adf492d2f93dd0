// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_LOAD_CONNECTIONS_H_
#define HEADWISE_CLIENT_LOAD_CONNECTIONS_H_

#include <string>
#include <vector>

namespace headwise::client {

// Established connections of this process to the targets (HOST:PORT or unix:PATH), as the kernel
// knows them: sockets whose peer has a target's port or path. What gRPC was asked for may differ.
int CountConnections(const std::vector<std::string>& targets);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_CONNECTIONS_H_
