// SPDX-License-Identifier: Apache-2.0
// Forward requests and answers between the wire and core.
#ifndef HEADWISE_SERVER_CODEC_INPUT_H_
#define HEADWISE_SERVER_CODEC_INPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/request.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise {

// Views of `input`'s bytes, which must outlive the result: its `owner` stays null, because the gRPC
// call keeps the message until it has been answered. INVALID_ARGUMENT for what can be told without
// the layer; a field is named "x", "mask.kind" and so on.
absl::StatusOr<AttentionInput> DecodeInput(const v1::AttentionInput& input);

// As DecodeInput, for the whole request; `context` is left to the caller. UNIMPLEMENTED for fields
// that are not carried out.
absl::StatusOr<ForwardRequest> DecodeForward(const v1::ForwardRequest& request);

// Moves the tensors' bytes into `response`.
void EncodeForward(ForwardResult&& result, const std::string& request_id,
                   v1::ForwardResponse* response);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CODEC_INPUT_H_
