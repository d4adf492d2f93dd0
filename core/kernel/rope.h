// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: y_i = x_i cos - x_j sin, y_j = x_j cos + x_i sin for each pair (i, j).
// Source: Su et al. 2021; layouts as RopeLayout.
#ifndef HEADWISE_CORE_KERNEL_ROPE_H_
#define HEADWISE_CORE_KERNEL_ROPE_H_

#include <cstdint>
#include <vector>

#include "core/layer/spec.h"

namespace headwise {

// Cosines and sines for one rotary width. Angles are taken in f64, so a far position loses nothing.
// Immutable; thread-safe.
class RopeTable {
 public:
  // `dims` even, <= the head's width.
  RopeTable(const RopeSpec& spec, int64_t dims);

  // Rotates the first dims features of `row` in place. `scratch` has dims floats.
  void Rotate(int64_t position, float* scratch, float* row) const;

  int64_t dims() const { return dims_; }

 private:
  void Angles(int64_t position, float* cos_sin) const;

  const RopeLayout layout_;
  const int64_t dims_;
  std::vector<double> inv_freq_;  // [dims / 2]
  std::vector<float> table_;      // [kTablePositions, dims]: cosines, then sines
};

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_ROPE_H_
