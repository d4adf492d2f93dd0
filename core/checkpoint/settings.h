// SPDX-License-Identifier: Apache-2.0
// From a family's row and config.json to a layer's spec.
#ifndef HEADWISE_CORE_CHECKPOINT_SETTINGS_H_
#define HEADWISE_CORE_CHECKPOINT_SETTINGS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/family.h"
#include "core/layer/spec.h"

namespace headwise {

// Number of attention blocks that the model has.
absl::StatusOr<int64_t> ReadLayerCount(const Family& family, const ConfigObject& config);

// Whether the block's projections have biases.
absl::StatusOr<bool> ReadHasBiases(const Family& family, const ConfigObject& config);

// The resolved spec of block `layer`. UNIMPLEMENTED (a setting, by name and value), DATA_LOSS
// (config.json), INVALID_ARGUMENT (what ResolveSpec refuses).
absl::StatusOr<LayerSpec> ReadLayerSpec(const Family& family, const ConfigObject& config,
                                        int64_t layer);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_SETTINGS_H_
