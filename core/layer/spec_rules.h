// SPDX-License-Identifier: Apache-2.0
// ResolveSpec's rules on positions. Pure; thread-safe.
#ifndef HEADWISE_CORE_LAYER_SPEC_RULES_H_
#define HEADWISE_CORE_LAYER_SPEC_RULES_H_

#include "absl/status/status.h"
#include "core/layer/spec.h"

namespace headwise::spec_rules {

// Fills rope.dims in and checks what every scaling needs; dk is resolved.
absl::Status ResolveRope(LayerSpec* spec);

// What the scaling needs beyond, and settings that would silently change nothing.
absl::Status CheckRopeScaling(const LayerSpec& spec);

absl::Status CheckPositionBias(const LayerSpec& spec);

}  // namespace headwise::spec_rules

#endif  // HEADWISE_CORE_LAYER_SPEC_RULES_H_
