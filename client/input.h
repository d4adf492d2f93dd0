// SPDX-License-Identifier: Apache-2.0
// The flags that say what enters a layer, shared by every verb with --input.
#ifndef HEADWISE_CLIENT_INPUT_H_
#define HEADWISE_CLIENT_INPUT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/flags.h"
#include "headwise/v1/tensor.pb.h"

namespace headwise::client {

const std::vector<Flag>& InputFlags();

// Reads the files that the flags name. Usage errors (a flag missing, malformed or contradicted by
// another) come before any file is opened.
absl::StatusOr<v1::AttentionInput> BuildInput(const Args& args);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_INPUT_H_
