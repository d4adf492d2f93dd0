// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/rope_frequencies.h"

#include <cmath>
#include <cstddef>

namespace headwise {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

double AttentionFactor(const RopeSpec& spec) {
  if (spec.attention_factor) return *spec.attention_factor;
  if (spec.factor <= 1.0) return 1.0;
  switch (spec.scaling) {
    case RopeScaling::kYarn:
      return 1.0 + std::log(spec.factor) / 10.0;
    case RopeScaling::kLongRope:
      return std::sqrt(1.0 + std::log(spec.factor) / std::log(spec.original_max_positions));
    default:
      return 1.0;
  }
}

// DYNAMIC raises the base with the length instead of slowing every pair down alike.
double EffectiveBase(const RopeSpec& spec, int64_t dims, int64_t length) {
  const double excess = static_cast<double>(length) / spec.original_max_positions;
  if (spec.scaling != RopeScaling::kDynamic || excess <= 1.0) return spec.base;
  const double growth = 1.0 + spec.factor * (excess - 1.0);
  return spec.base * std::pow(growth, static_cast<double>(dims) / static_cast<double>(dims - 2));
}

// Share of a pair's frequency that stays (1) or is divided by the factor (0): LLAMA3 by how often
// the pair turns within the trained length.
double Llama3Kept(const RopeSpec& spec, double inv_freq) {
  const double turns = spec.original_max_positions * inv_freq / kTwoPi;
  if (turns < spec.low_freq_factor) return 0.0;
  if (turns > spec.high_freq_factor) return 1.0;
  return (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
}

// YARN by the pair's index: a ramp between the pairs that turn beta_fast and beta_slow times.
class YarnRamp {
 public:
  YarnRamp(const RopeSpec& spec, int64_t dims) {
    const auto pair_of = [&spec, dims](double turns) {
      return static_cast<double>(dims) / (2.0 * std::log(spec.base)) *
             std::log(spec.original_max_positions / (turns * kTwoPi));
    };
    begin_ = pair_of(spec.beta_fast);
    end_ = pair_of(spec.beta_slow);
    if (spec.truncate) {
      begin_ = std::floor(begin_);
      end_ = std::ceil(end_);
    }
    begin_ = std::fmax(begin_, 0.0);
    end_ = std::fmin(end_, static_cast<double>(dims - 1));
    if (begin_ == end_) end_ += 0.001;
  }

  double Kept(int64_t pair) const {
    const double slowed = (static_cast<double>(pair) - begin_) / (end_ - begin_);
    return 1.0 - std::fmin(std::fmax(slowed, 0.0), 1.0);
  }

 private:
  double begin_ = 0.0;
  double end_ = 0.0;
};

double Mixed(double inv_freq, double kept, double factor) {
  return inv_freq * kept + inv_freq / factor * (1.0 - kept);
}

}  // namespace

RopeFrequencies MakeRopeFrequencies(const RopeSpec& spec, int64_t dims, int64_t length) {
  RopeFrequencies made;
  made.attention_factor = AttentionFactor(spec);
  const double base = EffectiveBase(spec, dims, length);
  const bool is_long = static_cast<double>(length) > spec.original_max_positions;
  const std::vector<double>& divisors = is_long ? spec.long_factors : spec.short_factors;
  for (int64_t pair = 0; pair < dims / 2; ++pair) {
    double inv_freq = std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dims));
    switch (spec.scaling) {
      case RopeScaling::kDefault:
      case RopeScaling::kDynamic:
        break;
      case RopeScaling::kLinear:
        inv_freq /= spec.factor;
        break;
      case RopeScaling::kLlama3:
        inv_freq = Mixed(inv_freq, Llama3Kept(spec, inv_freq), spec.factor);
        break;
      case RopeScaling::kYarn:
        inv_freq = Mixed(inv_freq, YarnRamp(spec, dims).Kept(pair), spec.factor);
        break;
      case RopeScaling::kLongRope:
        inv_freq /= divisors[static_cast<size_t>(pair)];
        break;
    }
    made.inv_freq.push_back(inv_freq);
  }
  return made;
}

bool RopeDependsOnLength(const RopeSpec& spec) {
  return spec.scaling == RopeScaling::kDynamic || spec.scaling == RopeScaling::kLongRope;
}

}  // namespace headwise
