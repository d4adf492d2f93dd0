// SPDX-License-Identifier: Apache-2.0
// Audit requests and answers between the wire and core.
#ifndef HEADWISE_SERVER_CODEC_AUDIT_H_
#define HEADWISE_SERVER_CODEC_AUDIT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "core/audit/checks.h"
#include "core/audit/distinguish.h"
#include "core/audit/search.h"
#include "core/layer/spec.h"
#include "core/reference/reference_input.h"
#include "headwise/v1/analysis.pb.h"

namespace headwise {

// The caller's tensors as doubles, each with as many elements as the layer's own. INVALID_ARGUMENT
// under "theirs.y" and so on.
absl::StatusOr<TheirTensors> DecodeTheirs(const LayerSpec& spec, const ReferenceInput& input,
                                          const v1::Theirs& theirs);

// F32, BF16 or F16; unspecified: the dtype of y (F64 counts as F32).
absl::StatusOr<DType> DecodeStatedDType(const v1::Theirs& theirs);

// Gates and ablated heads of `right`. INVALID_ARGUMENT; UNIMPLEMENTED for kinds but ZERO and SCALE.
absl::Status DecodeAuditAblation(const v1::Ablation& ablation, AuditCase* right);

void EncodeChecks(const std::vector<AuditCheck>& checks, v1::AuditResult* wire);
void EncodeSearch(const SearchResult& result, DType stated, v1::AuditResult* wire);
void EncodeDistinguishing(const DistinguishingInput& input, const LayerSpec& spec,
                          v1::AuditResult* wire);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CODEC_AUDIT_H_
