// SPDX-License-Identifier: Apache-2.0
#include "core/reference/reference_position.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/dtype.h"

namespace headwise {
namespace {

constexpr double kPi = std::numbers::pi;

std::vector<double> Plain(double base, double dims) {
  std::vector<double> frequencies;
  for (double i = 0; i < dims / 2; ++i) frequencies.push_back(std::pow(base, -2.0 * i / dims));
  return frequencies;
}

// Long waves are slowed down by the factor, short ones stay, those between are mixed.
double Llama3(const RopeSpec& rope, double frequency) {
  const double wave = 2.0 * kPi / frequency;
  if (wave > rope.original_max_positions / rope.low_freq_factor) return frequency / rope.factor;
  if (wave < rope.original_max_positions / rope.high_freq_factor) return frequency;
  const double t = (rope.original_max_positions / wave - rope.low_freq_factor) /
                   (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - t) * frequency / rope.factor + t * frequency;
}

// The pair that turns `turns` times within the trained length.
double YarnPair(const RopeSpec& rope, double turns) {
  return static_cast<double>(rope.dims) *
         std::log(rope.original_max_positions / (2.0 * kPi * turns)) / (2.0 * std::log(rope.base));
}

// Pairs before `low` keep their frequency, those after `high` are slowed down, between them a ramp.
std::vector<double> Yarn(const RopeSpec& rope, std::vector<double> frequencies) {
  double low = YarnPair(rope, rope.beta_fast);
  double high = YarnPair(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.dims) - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
  return frequencies;
}

double RoundToBf16(double value) {
  return static_cast<double>(Bf16ToFloat(FloatToBf16(static_cast<float>(value))));
}

}  // namespace

std::vector<double> ReferenceFrequencies(const RopeSpec& rope, double length) {
  const double dims = static_cast<double>(rope.dims);
  const double trained = rope.original_max_positions;
  std::vector<double> frequencies = Plain(rope.base, dims);
  if (rope.scaling == RopeScaling::kLinear) {
    for (double& frequency : frequencies) frequency /= rope.factor;
  }
  if (rope.scaling == RopeScaling::kDynamic && length > trained) {
    const double stretch = rope.factor * length / trained - (rope.factor - 1.0);
    frequencies = Plain(rope.base * std::pow(stretch, dims / (dims - 2.0)), dims);
  }
  if (rope.scaling == RopeScaling::kLlama3) {
    for (double& frequency : frequencies) frequency = Llama3(rope, frequency);
  }
  if (rope.scaling == RopeScaling::kYarn) frequencies = Yarn(rope, std::move(frequencies));
  if (rope.scaling == RopeScaling::kLongRope) {
    const std::vector<double>& ext = length > trained ? rope.long_factors : rope.short_factors;
    for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= ext[i];
  }
  return frequencies;
}

double ReferenceAttentionFactor(const RopeSpec& rope) {
  if (rope.attention_factor.has_value()) return *rope.attention_factor;
  if (rope.factor <= 1.0) return 1.0;
  if (rope.scaling == RopeScaling::kYarn) return 0.1 * std::log(rope.factor) + 1.0;
  if (rope.scaling == RopeScaling::kLongRope) {
    return std::sqrt(1.0 + std::log(rope.factor) / std::log(rope.original_max_positions));
  }
  return 1.0;
}

int64_t ReferenceBucket(const PositionBiasSpec& bias, int64_t distance) {
  int64_t buckets = bias.buckets;
  int64_t first = 0;
  if (bias.bidirectional) {
    buckets /= 2;
    if (distance > 0) first = buckets;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(-distance, 0);
  }
  const int64_t exact = buckets / 2;
  if (distance < exact) return first + distance;
  const double share =
      std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
      std::log(static_cast<double>(bias.max_distance) / static_cast<double>(exact));
  const double bucket =
      static_cast<double>(exact) + std::trunc(share * static_cast<double>(buckets - exact));
  return first + static_cast<int64_t>(std::min(bucket, static_cast<double>(buckets - 1)));
}

double ReferenceAlibi(const PositionBiasSpec& bias, int64_t head, int64_t query_position,
                      int64_t key_position) {
  const double slope = static_cast<double>(bias.slopes[static_cast<size_t>(head)]);
  if (bias.rounded_to_bf16) {
    return RoundToBf16(RoundToBf16(slope) * RoundToBf16(static_cast<double>(key_position)));
  }
  return slope * static_cast<double>(key_position - query_position);
}

}  // namespace headwise
