// SPDX-License-Identifier: Apache-2.0
// Rows of the bias that a layer adds to its scores by position: ALiBi and T5's buckets.
#ifndef HEADWISE_CORE_KERNEL_POSITION_BIAS_H_
#define HEADWISE_CORE_KERNEL_POSITION_BIAS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/layer/spec.h"

namespace headwise {

// Immutable; thread-safe.
class PositionBias {
 public:
  // `spec` has a position bias; `table` is T5's [buckets, H], empty for ALiBi.
  PositionBias(const LayerSpec& spec, absl::Span<const float> table);

  // out[j] = bias of key `first_key + j` for a query at `query_position`, less the number that is
  // returned: one for the whole row, which the softmax doesn't see. Taken off where numbers far
  // from 0 would cost the differences between keys their last digits. `key_positions` is that of
  // the sequence's first key, null: 0, 1, 2, …
  float FillRow(int64_t head, int64_t query_position, const int64_t* key_positions,
                int64_t first_key, int64_t count, float* out) const;

 private:
  float RoundedAlibi(int64_t head, int64_t position) const;

  const PositionBiasSpec spec_;
  std::vector<float> slopes_;   // [H], times the scale where the spec says so
  std::vector<float> factors_;  // [H] of ALiBi rounded to bf16: the scale or 1
  // T5: [H, 2 reach + 1] by relative position -reach…reach; beyond, the ends.
  std::vector<float> by_distance_;
  int64_t reach_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_POSITION_BIAS_H_
