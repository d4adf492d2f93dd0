// SPDX-License-Identifier: Apache-2.0
// How fast each feature pair of a rotary embedding turns, for every scaling. Pure; thread-safe.
#ifndef HEADWISE_CORE_KERNEL_ROPE_FREQUENCIES_H_
#define HEADWISE_CORE_KERNEL_ROPE_FREQUENCIES_H_

#include <cstdint>
#include <vector>

#include "core/layer/spec.h"

namespace headwise {

struct RopeFrequencies {
  std::vector<double> inv_freq;   // [dims / 2] radians a position
  double attention_factor = 1.0;  // multiplies cosines and sines
};

// For the first `dims` features (even) of a head, in a sequence of `length` (its largest position,
// of queries and keys, + 1). Only where RopeDependsOnLength does `length` matter.
RopeFrequencies MakeRopeFrequencies(const RopeSpec& spec, int64_t dims, int64_t length);

// Whether sequences of different lengths turn at different speeds.
bool RopeDependsOnLength(const RopeSpec& spec);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_ROPE_FREQUENCIES_H_
