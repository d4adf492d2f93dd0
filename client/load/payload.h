// SPDX-License-Identifier: Apache-2.0
// Requests of a load test as wire bytes, made without copying their tensors.
#ifndef HEADWISE_CLIENT_LOAD_PAYLOAD_H_
#define HEADWISE_CLIENT_LOAD_PAYLOAD_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/load/transport.h"

namespace headwise::client {

// All requests show the first tokens of one seeded random x, so that making one costs a header of
// some 40 bytes, however wide the layer: the generator must not become the limit. Thread-safe.
class Payload {
 public:
  Payload(std::string layer, uint32_t d_model, uint32_t max_tokens, uint64_t seed,
          int32_t priority = 0);

  // A ForwardRequest, or an AblateRequest with the leave-one-out sweep. Its bytes live as long as
  // this object. `tokens` <= max_tokens.
  grpc::ByteBuffer Make(Method method, uint32_t tokens) const;

 private:
  const std::string layer_;
  const uint32_t d_model_;
  const int32_t priority_;
  std::vector<float> x_;  // [max_tokens, D]
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_PAYLOAD_H_
