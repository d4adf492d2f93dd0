// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_JSON_H_
#define HEADWISE_CLIENT_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace headwise::client {

// Protobuf's JSON mapping as one line that ends in a newline: the proto's field names kept,
// defaults printed, unset optionals absent, bytes of tensors left out.
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_JSON_H_
