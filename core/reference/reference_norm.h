// SPDX-License-Identifier: Apache-2.0
// Norms in float64.
#ifndef HEADWISE_CORE_REFERENCE_REFERENCE_NORM_H_
#define HEADWISE_CORE_REFERENCE_REFERENCE_NORM_H_

#include <cstdint>
#include <vector>

#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

struct ReferenceNorm {
  NormKind kind = NormKind::kRms;
  double epsilon = 0.0;
  const float* weight = nullptr;  // [width]; null: multiplies by 1
  const float* bias = nullptr;    // [width]; null: none
};

// One norm over x [width] in place. `bound` [width] of x, which may be null, becomes that of the
// result, where `store` is the unit roundoff of what is stored.
void NormaliseRow(const ReferenceNorm& norm, int64_t width, double store, double* x, double* bound);

// The norm before the layer, which `spec` has, over rows x [N, D].
void ApplyPreNorm(const LayerSpec& spec, const LayerVectors& vectors, std::vector<double>* x);

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_REFERENCE_NORM_H_
