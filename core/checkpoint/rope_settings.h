// SPDX-License-Identifier: Apache-2.0
// RoPE's settings in both styles of config.json.
#ifndef HEADWISE_CORE_CHECKPOINT_ROPE_SETTINGS_H_
#define HEADWISE_CORE_CHECKPOINT_ROPE_SETTINGS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/family.h"
#include "core/layer/spec.h"

namespace headwise {

// Which of a model's kinds of layers one is.
struct RopeLayer {
  std::optional<std::string> type;  // as rope_parameters names it; absent: the model has one kind
  bool sliding = false;
};

// Fills spec->rope; its sizes are read. Looks into rope_parameters[type], rope_parameters, then the
// older keys. DATA_LOSS (config.json), UNIMPLEMENTED (a kind, by name).
absl::Status ReadRope(const RopeRule& rule, const ConfigObject& config, const RopeLayer& layer,
                      LayerSpec* spec);

}  // namespace headwise

#endif  // HEADWISE_CORE_CHECKPOINT_ROPE_SETTINGS_H_
