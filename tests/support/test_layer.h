// SPDX-License-Identifier: Apache-2.0
// Layers that tests make from numbers: identity, averaging and random ones.
#ifndef HEADWISE_TESTS_SUPPORT_TEST_LAYER_H_
#define HEADWISE_TESTS_SUPPORT_TEST_LAYER_H_

#include <cstdint>
#include <vector>

#include "core/base/tensor.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

// A layer as plain numbers: `spec` resolved, OUT_IN, SEPARATE.
struct TestLayer {
  LayerSpec spec;
  LayerMatrices matrices;
};

// Tensors that hold a TestLayer's numbers, in the form that a loader hands over.
class LayerTensors {
 public:
  explicit LayerTensors(const TestLayer& layer);
  const std::vector<RoleTensor>& roles() const { return roles_; }

 private:
  void Add(TensorRole role, const char* name, Shape shape, const std::vector<float>& values);
  std::vector<OwnedTensor> owned_;
  std::vector<RoleTensor> roles_;
};

// D, H and OUT_IN; everything else is the default. Not resolved.
LayerSpec BasicSpec(int64_t d_model, int64_t heads);

// [n, n] with ones on the diagonal.
std::vector<float> Identity(int64_t n);

// ID(D, H) of the case list: W_q = W_k = W_v = W_o = identity, no biases.
TestLayer IdentityLayer(int64_t d_model, int64_t heads);

// AVG(D, H): as ID with W_q = 0, so that every visible key has the same weight.
TestLayer AverageLayer(int64_t d_model, int64_t heads);

// Uniform numbers of (-amplitude, amplitude).
std::vector<float> RandomFloats(int64_t count, uint32_t seed, float amplitude = 1.0f);

// Random weights of about 1/sqrt(width), norms about 1, sinks and tables as the spec has them, and
// with `biases` all biases. `spec` need not be resolved.
TestLayer RandomLayer(const LayerSpec& spec, uint32_t seed, bool biases = true);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TEST_LAYER_H_
