// SPDX-License-Identifier: Apache-2.0
// From a family's row and config.json to a layer's spec.
#ifndef HEADWISE_CORE_CHECKPOINT_SETTINGS_H_
#define HEADWISE_CORE_CHECKPOINT_SETTINGS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/family.h"
#include "core/layer/spec.h"

namespace headwise {

// Number of attention blocks that the model (or its part) has.
absl::StatusOr<int64_t> ReadLayerCount(const Family& family, const ConfigObject& config);

// Whether the projections have the layout's biases, and the block its norms.
absl::StatusOr<bool> ReadSwitch(const Switch& setting, const ConfigObject& config);

// The block that layer `layer` is stored as: itself, or that of the group it belongs to.
absl::StatusOr<int64_t> ReadBlockIndex(const Family& family, const ConfigObject& config,
                                       int64_t layer);

// The resolved spec of layer `layer`, whose stored output projection reads `z_width` features where
// that is known. UNIMPLEMENTED (a setting, by name and value), DATA_LOSS (config.json),
// INVALID_ARGUMENT (sizes that ResolveSpec refuses).
absl::StatusOr<LayerSpec> ReadLayerSpec(const Family& family, const ConfigObject& config,
                                        int64_t layer, std::optional<int64_t> z_width);

// The norm that x went through before the block; absent where the model has none there. DATA_LOSS
// (config.json).
absl::StatusOr<std::optional<PreNormSpec>> ReadPreNorm(const Family& family,
                                                       const ConfigObject& config);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_SETTINGS_H_
