// SPDX-License-Identifier: Apache-2.0
// Angles of rotary position embedding: y_i = x_i cos - x_j sin, y_j = x_j cos + x_i sin for each
// pair (i, j) of features. Source: Su et al. 2021; layouts as RopeLayout.
#ifndef HEADWISE_CORE_KERNEL_ROPE_H_
#define HEADWISE_CORE_KERNEL_ROPE_H_

#include <cstdint>
#include <vector>

#include "core/kernel/rope_frequencies.h"
#include "core/layer/spec.h"

namespace headwise {

// Cosines and sines of a layer. Angles are taken in f64, so a far position loses nothing.
// Immutable; thread-safe.
class RopeTable {
 public:
  explicit RopeTable(const RopeSpec& spec);  // resolved

  RopeLayout layout() const { return spec_.layout; }
  int64_t dims() const { return spec_.dims; }

  // Floats of one position's angles, laid out as RotateRows takes them.
  int64_t row_floats() const { return layout() == RopeLayout::kInterleaved ? 2 * dims() : dims(); }

  // Whether angles of positions [lowest, highest] in a sequence of `length` (its largest position
  // of queries and keys, + 1) are ready in this table; if not they have to be computed.
  bool Covers(int64_t lowest, int64_t highest, int64_t length) const;
  const float* Ready(int64_t position) const { return table_.data() + position * row_floats(); }

  RopeFrequencies Frequencies(int64_t length) const {
    return MakeRopeFrequencies(spec_, dims(), length);
  }
  // out [row_floats]
  void Compute(const RopeFrequencies& frequencies, int64_t position, float* out) const;

 private:
  const RopeSpec spec_;
  std::vector<float> table_;  // [kTablePositions, row_floats]
};

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_ROPE_H_
