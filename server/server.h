// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_SERVER_H_
#define HEADWISE_SERVER_SERVER_H_

#include <cstdint>
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

  // "listening 127.0.0.1:8500 metrics 127.0.0.1:8501 admin 127.0.0.1:8502", the last two where
  // there are such, with the ports that the system chose; several addresses of a flag by commas.
  virtual std::string Banner() const = 0;

  // Loads what --load and --demo ask for and runs each layer once, then the server is ready. A
  // layer that fails is reported; with --strict-start that ends it and is returned, else the rest
  // is served and the server isn't ready until a call loads that name. Stops between two layers
  // when draining has begun.
  virtual absl::Status LoadStartupLayers() = 0;

  // Health says NOT_SERVING, its watchers are told and their streams end; after --lame-duck new
  // calls are UNAVAILABLE; what has been accepted goes on.
  virtual void BeginDrain() = 0;

  // The rest of the lame duck and of the grace is given up.
  virtual void Hurry() = 0;

  // Returns after BeginDrain, once every accepted call has ended or the grace is over; what is left
  // by then ends with UNAVAILABLE. The gRPC port is closed; the HTTP pages go with the server.
  virtual void Wait() = 0;

  // Of requests and answers in memory.
  virtual int64_t request_bytes() const = 0;

  // For tests that need no port.
  virtual grpc::Server* grpc_server() = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_SERVER_H_
