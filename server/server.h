// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_SERVER_H_
#define HEADWISE_SERVER_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/engine.h"
#include "server/options.h"

namespace grpc {
class ChannelInterface;
class Server;
}  // namespace grpc

namespace headwise {

// The gRPC server and its HTTP pages over an engine. Start, LoadStartupLayers, Wait, in that order
// on one thread; BeginDrain and Hurry from any thread.
class Server {
 public:
  // Binds both ports and serves at once; health says NOT_SERVING until LoadStartupLayers is done.
  // `engine` must outlive the server. UNAVAILABLE if a port can't be had, NOT_FOUND for the
  // repository's folder.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       Engine* engine);
  // Ends at once what Wait hasn't waited for.
  virtual ~Server() = default;

  // "listening 127.0.0.1:8500 metrics 127.0.0.1:8501", with the ports that the system chose.
  virtual std::string Banner() const = 0;

  // Loads what --load and --demo ask for, then the server is ready. After an error it never is.
  // Stops between two layers when draining has begun.
  virtual absl::Status LoadStartupLayers() = 0;

  // Health says NOT_SERVING, its watchers are told and their streams end, new calls are
  // UNAVAILABLE; what has been accepted goes on.
  virtual void BeginDrain() = 0;

  // The rest of the grace is given up.
  virtual void Hurry() = 0;

  // Returns after BeginDrain, once every accepted call has ended or the grace is over; what is left
  // by then ends with UNAVAILABLE. The gRPC port is closed; the HTTP pages go with the server.
  virtual void Wait() = 0;

  // For tests that need no port.
  virtual grpc::Server* grpc_server() = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_SERVER_H_
