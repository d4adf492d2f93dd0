// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/position_bias.h"

#include <algorithm>

#include "core/base/dtype.h"
#include "core/kernel/position_buckets.h"

namespace headwise {
namespace {

float RoundToBf16(float value) { return Bf16ToFloat(FloatToBf16(value)); }

}  // namespace

PositionBias::PositionBias(const LayerSpec& spec, absl::Span<const float> table)
    : spec_(*spec.position_bias) {
  for (int64_t r = 0; r < spec.heads; ++r) {
    if (spec_.kind == PositionBiasKind::kT5Buckets) break;
    const float scale = spec_.scaled ? static_cast<float>(spec.head_scale(r)) : 1.0f;
    const float slope = spec_.slopes[static_cast<size_t>(r)];
    slopes_.push_back(spec_.rounded_to_bf16 ? RoundToBf16(slope) : slope * scale);
    factors_.push_back(scale);
  }
  if (spec_.kind != PositionBiasKind::kT5Buckets) return;
  reach_ = spec_.max_distance;
  for (int64_t r = 0; r < spec.heads; ++r) {
    for (int64_t distance = -reach_; distance <= reach_; ++distance) {
      by_distance_.push_back(
          table[static_cast<size_t>(T5Bucket(spec_, distance) * spec.heads + r)]);
    }
  }
}

// Falcon's: slope, position and product each rounded.
float PositionBias::RoundedAlibi(int64_t head, int64_t position) const {
  return RoundToBf16(slopes_[static_cast<size_t>(head)] *
                     RoundToBf16(static_cast<float>(position)));
}

float PositionBias::FillRow(int64_t head, int64_t query_position, const int64_t* key_positions,
                            int64_t first_key, int64_t count, float* out) const {
  const auto position = [&](int64_t j) {
    return key_positions == nullptr ? first_key + j : key_positions[first_key + j];
  };
  if (spec_.kind == PositionBiasKind::kT5Buckets) {
    const float* biases = by_distance_.data() + head * (2 * reach_ + 1) + reach_;
    for (int64_t j = 0; j < count; ++j) {
      out[j] = biases[std::clamp(position(j) - query_position, -reach_, reach_)];
    }
    return 0.0f;
  }
  if (spec_.rounded_to_bf16) {
    const float own = RoundedAlibi(head, query_position);
    const float factor = factors_[static_cast<size_t>(head)];
    for (int64_t j = 0; j < count; ++j) {
      out[j] = (RoundedAlibi(head, position(j)) - own) * factor;
    }
    return own * factor;
  }
  const float slope = slopes_[static_cast<size_t>(head)];
  if (key_positions == nullptr) {
    // Steps of 1 in f32 are exact up to 2^24; beyond, positions themselves no longer are.
    const float first = static_cast<float>(first_key - query_position);
    for (int32_t j = 0; j < static_cast<int32_t>(count); ++j) {
      out[j] = slope * (first + static_cast<float>(j));
    }
    return 0.0f;
  }
  for (int64_t j = 0; j < count; ++j) {
    out[j] = slope * static_cast<float>(key_positions[first_key + j] - query_position);
  }
  return 0.0f;
}

}  // namespace headwise
