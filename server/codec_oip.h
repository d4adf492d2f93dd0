// SPDX-License-Identifier: Apache-2.0
// Layers as models of the Open Inference Protocol, and its requests as forwards.
#ifndef HEADWISE_SERVER_CODEC_OIP_H_
#define HEADWISE_SERVER_CODEC_OIP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/engine.h"
#include "core/request.h"
#include "inference/inference.pb.h"

namespace headwise {

// Inputs: x, [N, D] or [B, T, D] (FP32, BF16, FP16); optionally lengths [B] (INT32, INT64) of an x
// [N, D], memory [M, d_memory] and memory_lengths [B]. Outputs: y in x's datatype, and on request
// z, q, k, v, contributions, p and scores in FP32. For a dense x the token axis of an output is
// split as x's is. p and scores are [B, H, T, S] where all sequences have the same T and S, else
// flat, sequence after sequence.

// INVALID_ARGUMENT: a tensor that isn't one of the inputs or is given twice, a datatype, a shape or
// a byte count that doesn't fit, raw and typed contents mixed, an output of another name. Views of
// `request`'s bytes, which must outlive the result; `context` is left to the caller.
absl::StatusOr<ForwardRequest> DecodeInfer(const inference::ModelInferRequest& request);

// Moves the tensors' bytes into `response`. `request` is what the result answers.
void EncodeInfer(ForwardResult&& result, const inference::ModelInferRequest& request,
                 inference::ModelInferResponse* response);

void EncodeMetadata(const LayerInfo& info, inference::ModelMetadataResponse* response);
void EncodeConfig(const LayerInfo& info, inference::ModelConfig* config);

// NOT_FOUND unless `version` is empty or the layer's.
absl::Status CheckModelVersion(const LayerInfo& info, absl::string_view version);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CODEC_OIP_H_
