// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_LOAD_GRPC_TRANSPORT_H_
#define HEADWISE_CLIENT_LOAD_GRPC_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/channel_security.h"
#include "client/load/transport.h"

namespace headwise::client {

// Calls over gRPC: the using thread sends, one thread of the transport's own receives and stamps
// the time. Destroy it only when no call is in flight.
class GrpcTransport : public Transport {
 public:
  struct Settings {
    std::vector<std::string> targets;
    uint32_t connections = 1;  // TCP connections, dealt out to the targets in turn
    absl::Duration timeout = absl::Seconds(30);  // of a call, from when it was sent
    std::string client_id;
    int32_t priority = 0;
    struct Layer {
      std::string name;
      uint32_t d_model = 0;
    };
    std::vector<Layer> layers;
    uint32_t max_tokens = 0;
    uint64_t seed = 0;
    ChannelSecurity security;
  };

  // The call of id i goes over connection i mod `connections`. Opens every connection before it
  // returns. UNAVAILABLE if one isn't there within the timeout, INVALID_ARGUMENT as CheckSecurity.
  static absl::StatusOr<std::unique_ptr<GrpcTransport>> Open(const Settings& settings);

  // Connections that the kernel has as established now.
  virtual int MeasureConnections() const = 0;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_GRPC_TRANSPORT_H_
