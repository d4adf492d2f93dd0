// SPDX-License-Identifier: Apache-2.0
#include "server/http_server.h"

#include <civetweb.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

int Answer(mg_connection* connection, int code, const char* type, const std::string& body) {
  const char* method = mg_get_request_info(connection)->request_method;
  const bool head = std::strcmp(method, "HEAD") == 0;
  if (!head && std::strcmp(method, "GET") != 0) {
    mg_send_http_error(connection, 405, "%s", "only GET and HEAD");
    return 405;
  }
  mg_response_header_start(connection, code);
  mg_response_header_add(connection, "Content-Type", type, -1);
  mg_response_header_add(connection, "Content-Length", absl::StrCat(body.size()).c_str(), -1);
  mg_response_header_add(connection, "Cache-Control", "no-store", -1);
  mg_response_header_send(connection);
  if (!head) mg_write(connection, body.data(), body.size());
  return code;
}

int ServeMetrics(mg_connection* connection, void* pages) {
  return Answer(connection, 200, "text/plain; version=0.0.4; charset=utf-8",
                static_cast<const HttpPages*>(pages)->metrics());
}

int ServeHealth(mg_connection* connection, void*) {
  return Answer(connection, 200, "text/plain", "ok\n");
}

int ServeReadiness(mg_connection* connection, void* pages) {
  const bool ready = static_cast<const HttpPages*>(pages)->ready();
  return Answer(connection, ready ? 200 : 503, "text/plain", ready ? "ready\n" : "not ready\n");
}

// civetweb's own lines ("cannot bind …") stay off stderr: Start says it in its status.
int DropMessage(const mg_connection*, const char*) { return 1; }

}  // namespace

HttpServer::HttpServer(HttpPages pages) : pages_(std::move(pages)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              HttpPages pages) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(pages)));
  const char* options[] = {
      "listening_ports", address.c_str(),     "num_threads", "4",    "request_timeout_ms",
      "10000",           "enable_keep_alive", "no",          nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = DropMessage;
  mg_init_library(0);
  server->context_ = mg_start(&callbacks, nullptr, options);
  if (server->context_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("metrics: must be a HOST:PORT that is free; was ", address));
  }
  mg_server_port ports[1] = {};
  if (mg_get_server_ports(server->context_, 1, ports) == 1) server->port_ = ports[0].port;
  void* shown = const_cast<HttpPages*>(&server->pages_);
  mg_set_request_handler(server->context_, "/metrics$", ServeMetrics, shown);
  mg_set_request_handler(server->context_, "/healthz$", ServeHealth, shown);
  mg_set_request_handler(server->context_, "/readyz$", ServeReadiness, shown);
  return server;
}

HttpServer::~HttpServer() {
  if (context_ != nullptr) mg_stop(context_);
  mg_exit_library();
}

}  // namespace headwise
