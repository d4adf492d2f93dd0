// SPDX-License-Identifier: Apache-2.0
// Layers' settings and descriptions between the wire and core.
#ifndef HEADWISE_SERVER_CODEC_LAYER_H_
#define HEADWISE_SERVER_CODEC_LAYER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/counts.h"
#include "core/layer/layer_info.h"
#include "core/layer/spec.h"
#include "headwise/v1/headwise.pb.h"
#include "headwise/v1/layer.pb.h"

namespace headwise {

// The settings alone (`tensors` is DecodeTensorNames'), unresolved. INVALID_ARGUMENT for an enum
// value that has no name.
absl::StatusOr<LayerSpec> DecodeSpec(const v1::LayerSpec& wire);

// The roles that have a name, in the order of the roles.
std::vector<TensorUse> DecodeTensorNames(const v1::TensorNames& wire);
// Its inverse, but for the order.
void EncodeTensorNames(const std::vector<TensorUse>& uses, v1::TensorNames* wire);

// A resolved spec.
void EncodeSpec(const LayerSpec& spec, v1::LayerSpec* wire);

void EncodeSummary(const LayerInfo& info, v1::LayerSummary* wire);
void EncodeDetails(const LayerInfo& info, const std::vector<Count>& counts, v1::LayerDetails* wire);

// A layer's dtype (F32, BF16, I8), unspecified being F32. INVALID_ARGUMENT for one that no layer
// has.
absl::StatusOr<DType> DecodeLayerDType(v1::DType dtype);

StoredTensorInfo DecodeStoredTensor(const v1::StoredTensor& wire);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CODEC_LAYER_H_
