// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_HTTP_SERVER_H_
#define HEADWISE_SERVER_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_context;

namespace headwise {

// What /metrics and /readyz answer; called on the HTTP server's threads.
struct HttpPages {
  std::function<std::string()> metrics;
  std::function<bool()> ready;
};

// A small HTTP server: GET /metrics, /healthz (the process lives), /readyz (503 until all start-up
// layers are loaded and while draining). Thread-safe.
class HttpServer {
 public:
  // `address` is HOST:PORT; port 0: the system chooses. UNAVAILABLE if it can't be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           HttpPages pages);
  // Takes up to 2 s: civetweb looks no more often whether it should stop.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  explicit HttpServer(HttpPages pages);

  const HttpPages pages_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_SERVER_H_
