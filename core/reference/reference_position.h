// SPDX-License-Identifier: Apache-2.0
// Where positions enter the reference: the angles of RoPE and the biases of scores, each formula as
// it is published. Pure; thread-safe.
#ifndef HEADWISE_CORE_REFERENCE_REFERENCE_POSITION_H_
#define HEADWISE_CORE_REFERENCE_REFERENCE_POSITION_H_

#include <cstdint>
#include <vector>

#include "core/layer/spec.h"

namespace headwise {

// Radians a position for each feature pair [dims / 2], in a sequence of `length` (its largest
// position + 1).
std::vector<double> ReferenceFrequencies(const RopeSpec& rope, double length);

// What multiplies cosines and sines.
double ReferenceAttentionFactor(const RopeSpec& rope);

// Row of T5's table for a key `distance` positions after the query.
int64_t ReferenceBucket(const PositionBiasSpec& bias, int64_t distance);

// ALiBi's bias of `head`, before the scale where bias.scaled.
double ReferenceAlibi(const PositionBiasSpec& bias, int64_t head, int64_t query_position,
                      int64_t key_position);

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_REFERENCE_POSITION_H_
