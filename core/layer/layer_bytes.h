// SPDX-License-Identifier: Apache-2.0
// What layers take of memory: counted, and bounded.
#ifndef HEADWISE_CORE_LAYER_LAYER_BYTES_H_
#define HEADWISE_CORE_LAYER_LAYER_BYTES_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/base/dtype.h"
#include "core/format/counts.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"

namespace headwise {

// What CountLayer counts of a resolved spec.
CountShape ShapeOf(const LayerSpec& spec, const LayerVectors& vectors);

// Parameters with biases in `dtype`, unpadded.
int64_t ParameterBytes(const LayerSpec& spec, const LayerVectors& v, DType dtype);

// Part of the memory for layers, held by a layer from the start of its load on. `used` is what all
// of them hold. Calls from one thread at a time; `used` is shared.
class LayerBytes {
 public:
  explicit LayerBytes(std::atomic<int64_t>* used) : used_(used) {}
  ~LayerBytes() { used_->fetch_sub(bytes_); }
  LayerBytes(const LayerBytes&) = delete;
  LayerBytes& operator=(const LayerBytes&) = delete;

  // RESOURCE_EXHAUSTED beyond `budget`; 0: none. Once.
  absl::Status Take(int64_t bytes, int64_t budget);

 private:
  std::atomic<int64_t>* const used_;
  int64_t bytes_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_LAYER_BYTES_H_
