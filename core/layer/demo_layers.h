// SPDX-License-Identifier: Apache-2.0
// Two layers small enough to follow by hand, compiled in. tests/data/two_head* holds the same ones
// as files, with every intermediate number.
#ifndef HEADWISE_CORE_LAYER_DEMO_LAYERS_H_
#define HEADWISE_CORE_LAYER_DEMO_LAYERS_H_

#include <string>
#include <vector>

#include "core/base/tensor.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

struct DemoTensor {
  TensorRole role = TensorRole::kQWeight;
  std::string name;
  OwnedTensor tensor;
};

struct DemoLayer {
  std::string name;
  LayerSpec spec;  // as a caller would give it, not resolved
  std::vector<DemoTensor> tensors;
  OwnedTensor x;  // [T, D]: an input whose numbers are easy to follow

  // Views of `tensors`; valid while this object lives and is not changed.
  std::vector<RoleTensor> RoleTensors() const;
};

// "two-head": D 4, H 2, dk = dv = 2, causal, no biases; T 3.
DemoLayer TwoHeadLayer();

// "two-head-unequal": D 4, H 2, dk 1 and 3, dv 2 and 1, causal, four biases; T 3.
DemoLayer TwoHeadUnequalLayer();

// Both, in this order.
std::vector<DemoLayer> DemoLayers();

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_DEMO_LAYERS_H_
