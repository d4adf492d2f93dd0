// SPDX-License-Identifier: Apache-2.0
// The flags of `ablate` as a request.
#ifndef HEADWISE_CLIENT_ABLATE_REQUEST_H_
#define HEADWISE_CLIENT_ABLATE_REQUEST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/flags.h"
#include "headwise/v1/ablation.pb.h"

namespace headwise::client {

const std::vector<Flag>& AblateFlags();

// Everything but the input. Usage errors as BuildInput; INVALID_ARGUMENT for a malformed file.
absl::StatusOr<v1::AblateRequest> BuildAblateRequest(const Args& args, const std::string& layer);

// JSON of a list of Ablation, of one Ablation, or of an AblateRequest without layer and input.
// Unknown keys are refused.
absl::StatusOr<v1::AblateRequest> ParseAblations(absl::string_view json);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_ABLATE_REQUEST_H_
