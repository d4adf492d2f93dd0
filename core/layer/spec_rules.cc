// SPDX-License-Identifier: Apache-2.0
#include "core/layer/spec_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/base/rules.h"

namespace headwise::spec_rules {
namespace {

constexpr int64_t kMaxBuckets = int64_t{1} << 20;
constexpr int64_t kMaxDistance = int64_t{1} << 40;

bool Positive(double value) { return std::isfinite(value) && value > 0.0; }

absl::Status CheckPositive(absl::string_view field, double value) {
  if (Positive(value)) return absl::OkStatus();
  return Invalid(field, "must be finite and positive", absl::StrCat(value));
}

absl::Status CheckOriginal(const RopeSpec& rope) {
  if (std::isfinite(rope.original_max_positions) && rope.original_max_positions >= 1.0) {
    return absl::OkStatus();
  }
  return Invalid("rope.original_max_positions", "must be at least 1 with this scaling",
                 absl::StrCat(rope.original_max_positions));
}

absl::Status CheckDynamic(const RopeSpec& rope) {
  if (rope.dims < 4) {
    return Invalid("rope.dims", "must be at least 4 with the scaling DYNAMIC",
                   absl::StrCat(rope.dims));
  }
  return CheckOriginal(rope);
}

absl::Status CheckLlama3(const RopeSpec& rope) {
  absl::Status status = CheckOriginal(rope);
  status.Update(CheckPositive("rope.low_freq_factor", rope.low_freq_factor));
  status.Update(CheckPositive("rope.high_freq_factor", rope.high_freq_factor));
  if (!status.ok() || rope.high_freq_factor > rope.low_freq_factor) return status;
  return Invalid("rope.high_freq_factor",
                 absl::StrCat("must be above low_freq_factor (", rope.low_freq_factor, ")"),
                 absl::StrCat(rope.high_freq_factor));
}

absl::Status CheckYarn(const RopeSpec& rope) {
  absl::Status status = CheckOriginal(rope);
  status.Update(CheckPositive("rope.beta_fast", rope.beta_fast));
  status.Update(CheckPositive("rope.beta_slow", rope.beta_slow));
  if (rope.base == 1.0) {
    status.Update(Invalid("rope.base", "must not be 1 with the scaling YARN", "1"));
  }
  return status;
}

absl::Status CheckFactors(absl::string_view field, const std::vector<double>& factors,
                          int64_t count) {
  if (static_cast<int64_t>(factors.size()) != count) {
    return Invalid(field, absl::StrCat("must have ", count, " entries (dims / 2)"),
                   absl::StrCat(factors.size()));
  }
  for (const double factor : factors) {
    if (absl::Status status = CheckPositive(field, factor); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckLongRope(const RopeSpec& rope) {
  absl::Status status = CheckOriginal(rope);
  status.Update(CheckFactors("rope.short_factors", rope.short_factors, rope.dims / 2));
  status.Update(CheckFactors("rope.long_factors", rope.long_factors, rope.dims / 2));
  // Its own attention factor divides by the logarithm.
  if (status.ok() && !rope.attention_factor && rope.factor > 1.0 &&
      rope.original_max_positions == 1.0) {
    return Invalid("rope.original_max_positions",
                   "must be above 1 with the scaling LONGROPE and no attention_factor", "1");
  }
  return status;
}

// Settings that another scaling has, or that none has.
absl::Status CheckUnused(const RopeSpec& rope) {
  const RopeScaling scaling = rope.scaling;
  if (scaling == RopeScaling::kDefault && rope.factor != 1.0) {
    return Invalid("rope.factor", "needs a scaling other than DEFAULT", absl::StrCat(rope.factor));
  }
  if (scaling != RopeScaling::kYarn && scaling != RopeScaling::kLongRope &&
      rope.attention_factor.value_or(1.0) != 1.0) {
    return Invalid("rope.attention_factor", "needs the scaling YARN or LONGROPE",
                   absl::StrCat(*rope.attention_factor));
  }
  if (scaling != RopeScaling::kLongRope &&
      !(rope.short_factors.empty() && rope.long_factors.empty())) {
    return Invalid("rope.short_factors, rope.long_factors", "need the scaling LONGROPE", "another");
  }
  return absl::OkStatus();
}

absl::Status CheckAlibi(const PositionBiasSpec& bias, int64_t heads) {
  if (static_cast<int64_t>(bias.slopes.size()) != heads) {
    return Invalid("position_bias.slopes", absl::StrCat("must have ", heads, " entries (heads)"),
                   absl::StrCat(bias.slopes.size()));
  }
  for (const float slope : bias.slopes) {
    if (!std::isfinite(slope)) {
      return Invalid("position_bias.slopes", "must be finite", absl::StrCat(slope));
    }
  }
  if (bias.buckets != 0 || bias.max_distance != 0 || bias.bidirectional) {
    return Invalid("position_bias.buckets, max_distance, bidirectional", "need the kind T5_BUCKETS",
                   "ALIBI");
  }
  return absl::OkStatus();
}

absl::Status CheckBuckets(const PositionBiasSpec& bias) {
  if (!bias.slopes.empty() || bias.scaled || bias.rounded_to_bf16) {
    return Invalid("position_bias.slopes, scaled, rounded_to_bf16", "need the kind ALIBI",
                   "T5_BUCKETS");
  }
  const int64_t least = bias.bidirectional ? 4 : 2;
  if (bias.buckets < least || bias.buckets > kMaxBuckets) {
    return Invalid("position_bias.buckets",
                   absl::StrCat("must be from ", least, " to ", kMaxBuckets),
                   absl::StrCat(bias.buckets));
  }
  // Distances below `exact` have a bucket each; the others share the rest by their logarithm.
  const int64_t exact = bias.buckets / (bias.bidirectional ? 4 : 2);
  if (bias.max_distance > exact && bias.max_distance <= kMaxDistance) return absl::OkStatus();
  return Invalid("position_bias.max_distance",
                 absl::StrCat("must be from ", exact + 1, " to ", kMaxDistance),
                 absl::StrCat(bias.max_distance));
}

}  // namespace

absl::Status ResolveRope(LayerSpec* spec) {
  if (!spec->rope.has_value()) return absl::OkStatus();
  RopeSpec& rope = *spec->rope;
  if (rope.layout == RopeLayout::kUnspecified) {
    return Invalid("rope.layout", "must be HALF or INTERLEAVED", "unspecified");
  }
  const int64_t narrowest = *std::min_element(spec->dk.begin(), spec->dk.end());
  if (rope.dims == 0) {
    if (!spec->equal_key_widths()) {
      return Invalid("rope.dims", "must be given where heads differ in dk", "0");
    }
    rope.dims = narrowest;
  }
  if (rope.dims < 2 || rope.dims % 2 != 0 || rope.dims > narrowest) {
    return Invalid("rope.dims",
                   absl::StrCat("must be even, at least 2 and at most dk (", narrowest, ")"),
                   absl::StrCat(rope.dims));
  }
  if (rope.factor == 0.0) rope.factor = 1.0;  // the wire's absent value
  return CheckPositive("rope.base", rope.base);
}

absl::Status CheckRopeScaling(const LayerSpec& spec) {
  if (!spec.rope.has_value()) return absl::OkStatus();
  const RopeSpec& rope = *spec.rope;
  absl::Status status = CheckPositive("rope.factor", rope.factor);
  status.Update(CheckPositive("rope.attention_factor", rope.attention_factor.value_or(1.0)));
  status.Update(CheckUnused(rope));
  if (!status.ok()) return status;
  switch (rope.scaling) {
    case RopeScaling::kDefault:
    case RopeScaling::kLinear:
      return absl::OkStatus();
    case RopeScaling::kDynamic:
      return CheckDynamic(rope);
    case RopeScaling::kLlama3:
      return CheckLlama3(rope);
    case RopeScaling::kYarn:
      return CheckYarn(rope);
    case RopeScaling::kLongRope:
      return CheckLongRope(rope);
  }
  return Invalid("rope.scaling", "must be a known scaling",
                 absl::StrCat(static_cast<int>(rope.scaling)));
}

absl::Status CheckPositionBias(const LayerSpec& spec) {
  if (!spec.position_bias.has_value()) return absl::OkStatus();
  if (spec.position_bias->kind == PositionBiasKind::kAlibi) {
    return CheckAlibi(*spec.position_bias, spec.heads);
  }
  return CheckBuckets(*spec.position_bias);
}

}  // namespace headwise::spec_rules
