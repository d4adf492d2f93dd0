// SPDX-License-Identifier: Apache-2.0
// Ablate requests and answers between the wire and core.
#ifndef HEADWISE_SERVER_CODEC_ABLATION_H_
#define HEADWISE_SERVER_CODEC_ABLATION_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/request.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise {

// Views of the request's bytes, as DecodeForward. INVALID_ARGUMENT, also for settings that a kind
// doesn't take; UNIMPLEMENTED for fields that are not carried out.
absl::StatusOr<AblateRequest> DecodeAblate(const v1::AblateRequest& request);

// The result without its tensors' bytes; those stay in `result.outputs`, for EncodeChunk.
void EncodeAblate(const v1::AblateRequest& request, const std::string& request_id,
                  AblateResult* result, v1::AblateResult* wire);

void EncodeInterval(const Interval& interval, v1::Interval* wire);

void EncodeProgress(const RequestProgress& progress, v1::Progress* wire);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CODEC_ABLATION_H_
