// SPDX-License-Identifier: Apache-2.0
// A gRPC server in this process whose answers a test chooses.
#ifndef HEADWISE_TESTS_CLIENT_STUB_SERVER_H_
#define HEADWISE_TESTS_CLIENT_STUB_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {

// What the stub does. Called from gRPC's threads; set before the server starts.
struct StubAnswers {
  uint32_t d_model = 4;
  int max_message_bytes = -1;  // of a request; -1: no limit
  // Absent: an answer that echoes x as y.
  std::function<absl::Status(const v1::ForwardRequest&, v1::ForwardResponse*)> forward;
  std::vector<v1::AblateResponse> ablate_parts;
  absl::Status ablate_status;
  absl::Status upload_status;  // given before the first message is read, if not OK
};

// Listens on a loopback port of the system's choice until it is destroyed.
class StubServer {
 public:
  static std::unique_ptr<StubServer> Start(StubAnswers answers);
  virtual ~StubServer() = default;

  virtual std::string target() const = 0;
  virtual int port() const = 0;
  virtual int get_layer_calls() const = 0;
  virtual std::vector<v1::UploadLayerRequest> uploaded() const = 0;
};

}  // namespace headwise::client

#endif  // HEADWISE_TESTS_CLIENT_STUB_SERVER_H_
