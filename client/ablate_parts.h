// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_ABLATE_PARTS_H_
#define HEADWISE_CLIENT_ABLATE_PARTS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise::client {

// Puts a streamed answer of Ablate together: the result, then its tensors chunk by chunk. Memory
// grows with the bytes that came, never with what the result promises. Not thread-safe.
class AblateParts {
 public:
  // Takes the part's bytes over. INTERNAL where it doesn't fit what came before.
  absl::Status Add(v1::AblateResponse* response);

  // The whole result, every tensor with its bytes; INTERNAL if something is missing. Call it once.
  absl::StatusOr<v1::AblateResult> Take();

 private:
  absl::Status AddChunk(v1::TensorChunk* chunk);

  bool has_result_ = false;
  v1::AblateResult result_;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_ABLATE_PARTS_H_
