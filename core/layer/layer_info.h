// SPDX-License-Identifier: Apache-2.0
// What is known of a loaded layer without its numbers.
#ifndef HEADWISE_CORE_LAYER_LAYER_INFO_H_
#define HEADWISE_CORE_LAYER_LAYER_INFO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/tensor.h"
#include "core/format/counts.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

// Where a layer came from; for `show` and messages only.
struct LayerSource {
  std::string dir;       // checkpoint folder as named by the caller
  std::string layer;     // "[PART.]I"
  std::string family;    // model_type, or "spec"
  std::string prefix;    // common prefix of the tensor names
  std::string x_enters;  // sentence: where in the model x is taken
  std::string y_leaves;  // sentence: where y is handed on
};

struct LayerTensorInfo {
  TensorRole role = TensorRole::kQWeight;
  std::string name;
  DType dtype = DType::kF32;  // as stored
  Shape shape;
};

// How far a layer in reduced numbers is from its f32 form on a probe input.
struct ReducedError {
  std::string probe;         // what the probe input was
  double max_error = 0.0;    // largest |y - y_f32| / largest |y_f32|
  double relative_l2 = 0.0;  // |y - y_f32| / |y_f32|
};

struct LayerInfo {
  std::string name;
  int64_t version = 0;
  DType dtype = DType::kF32;  // of the packed weights: F32, BF16, I8
  std::string kernel;         // KernelPathName
  LayerSource source;
  LayerSpec spec;  // resolved
  std::vector<LayerTensorInfo> tensors;
  CountShape count_shape;          // for CountLayer
  int64_t weight_bytes = 0;        // parameters with biases in `dtype`, unpadded
  int64_t kernel_score_bytes = 0;  // scores that all compute threads together hold at a time
  std::optional<ReducedError> reduced_error;  // BF16 and I8 only
};

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_LAYER_INFO_H_
