// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/effects.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace headwise {
namespace {

// ‖y‖², <y, y - y'> and ‖y - y'‖² of some tokens.
struct Sums {
  double y_sq = 0.0;
  double y_delta = 0.0;
  double delta_sq = 0.0;

  void Add(const Sums& other) {
    y_sq += other.y_sq;
    y_delta += other.y_delta;
    delta_sq += other.delta_sq;
  }
};

double At(const SegmentGram& gram, size_t rows, size_t r, size_t s) {
  return gram.sums[std::min(r, s) * rows + std::max(r, s)];
}

Sums SegmentSums(const SegmentGram& gram, const std::vector<float>& factors) {
  const size_t heads = factors.size();
  const size_t rows = heads + 1;
  Sums sums{.y_sq = At(gram, rows, heads, heads)};
  for (size_t r = 0; r < heads; ++r) {
    const double a_r = 1.0 - static_cast<double>(factors[r]);
    if (a_r == 0.0) continue;  // selects: a head left alone may hold infinities
    sums.y_delta += a_r * At(gram, rows, r, heads);
    for (size_t s = 0; s < heads; ++s) {
      const double a_s = 1.0 - static_cast<double>(factors[s]);
      if (a_s != 0.0) sums.delta_sq += a_r * a_s * At(gram, rows, r, s);
    }
  }
  return sums;
}

Effect MakeEffect(const Sums& sums) {
  Effect effect;
  if (!std::isfinite(sums.y_sq) || !std::isfinite(sums.delta_sq) || !std::isfinite(sums.y_delta)) {
    return effect;
  }
  const double delta_sq = std::max(0.0, sums.delta_sq);
  effect.l2 = std::sqrt(delta_sq);
  if (sums.y_sq == 0.0) return effect;
  effect.relative_l2 = std::sqrt(delta_sq / sums.y_sq);
  const double ablated_sq = sums.y_sq - 2.0 * sums.y_delta + delta_sq;
  if (ablated_sq > 0.0) {
    const double cosine = (sums.y_sq - sums.y_delta) / std::sqrt(sums.y_sq * ablated_sq);
    effect.cosine = std::clamp(cosine, -1.0, 1.0);
  }
  return effect;
}

Effect MeanEffect(const std::vector<Effect>& effects) {
  const auto mean = [&](std::optional<double> Effect::* field) -> std::optional<double> {
    double sum = 0.0;
    int64_t count = 0;
    for (const Effect& effect : effects) {
      if (!(effect.*field).has_value()) continue;
      sum += *(effect.*field);
      ++count;
    }
    if (count == 0) return std::nullopt;
    return sum / static_cast<double>(count);
  };
  return {mean(&Effect::l2), mean(&Effect::relative_l2), mean(&Effect::cosine)};
}

void CountUndefined(const std::vector<Sums>& sums, AblationEffect* effect) {
  bool zero = false, not_finite = false;
  for (const Sums& s : sums) {
    const bool finite = std::isfinite(s.y_sq) && std::isfinite(s.delta_sq);
    if (finite && s.y_sq > 0.0) continue;
    ++effect->undefined_sequences;
    (finite ? zero : not_finite) = true;
  }
  if (zero) effect->undefined_reason = "a sequence has y = 0 (or no tokens)";
  if (not_finite) {
    if (zero) effect->undefined_reason += "; ";
    effect->undefined_reason += "a sequence has NaN or infinity in y";
  }
}

AblationEffect EffectOf(const AblationPlan& plan, size_t a, const std::vector<SegmentGram>& grams,
                        size_t heads, size_t sequences) {
  AblationEffect effect;
  effect.index = static_cast<int64_t>(a);
  effect.ablation = plan.ablations[a].ablation;
  effect.heads = plan.ablations[a].heads;
  std::vector<float> factors(heads);
  std::vector<Sums> per_sequence(sequences);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    plan.Factors(a, plan.segments[i], &factors);
    per_sequence[static_cast<size_t>(plan.segments[i].sequence)].Add(
        SegmentSums(grams[i], factors));
  }
  Sums pooled;
  for (const Sums& sums : per_sequence) {
    pooled.Add(sums);
    effect.per_sequence.push_back(MakeEffect(sums));
  }
  effect.pooled = MakeEffect(pooled);
  effect.mean_over_sequences = MeanEffect(effect.per_sequence);
  CountUndefined(per_sequence, &effect);
  return effect;
}

NamedOutput Doubles(std::string name, Shape shape, std::vector<std::string> axes,
                    const std::vector<double>& values) {
  NamedOutput output{.name = std::move(name),
                     .dtype = DType::kF64,
                     .shape = std::move(shape),
                     .axes = std::move(axes),
                     .head_ids = {},
                     .offsets = {},
                     .data = std::string(values.size() * sizeof(double), '\0')};
  if (!values.empty()) std::memcpy(output.data.data(), values.data(), output.data.size());
  return output;
}

}  // namespace

void ComputeEffects(const AblationPlan& plan, const std::vector<SegmentGram>& grams, int64_t heads,
                    int64_t sequences, AblateResult* result) {
  const size_t h = static_cast<size_t>(heads);
  std::vector<double> y_sq(static_cast<size_t>(sequences), 0.0);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    y_sq[static_cast<size_t>(plan.segments[i].sequence)] += At(grams[i], h + 1, h, h);
  }
  double total = 0.0;
  for (const double value : y_sq) {
    total += value;
    result->y_l2_per_sequence.push_back(std::sqrt(value));
  }
  result->y_l2 = std::sqrt(total);
  for (size_t a = 0; a < plan.ablations.size(); ++a) {
    result->ablations.push_back(EffectOf(plan, a, grams, h, static_cast<size_t>(sequences)));
  }
}

std::vector<NamedOutput> GramOutputs(const AblationPlan& plan,
                                     const std::vector<SegmentGram>& grams,
                                     const std::vector<int64_t>& head_ids, int64_t sequences) {
  const size_t h = head_ids.size();
  const size_t b_count = static_cast<size_t>(sequences);
  std::vector<double> gram(b_count * h * h), b(b_count * h), y_sq(b_count);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const size_t s = static_cast<size_t>(plan.segments[i].sequence);
    y_sq[s] += At(grams[i], h + 1, h, h);
    for (size_t r = 0; r < h; ++r) {
      b[s * h + r] += At(grams[i], h + 1, r, h);
      for (size_t c = 0; c < h; ++c) gram[(s * h + r) * h + c] += At(grams[i], h + 1, r, c);
    }
  }
  const int64_t heads = static_cast<int64_t>(h);
  std::vector<NamedOutput> outputs;
  outputs.push_back(Doubles("gram", {sequences, heads, heads}, {"sequence", "head", "head"}, gram));
  outputs.push_back(Doubles("b", {sequences, heads}, {"sequence", "head"}, b));
  outputs.push_back(Doubles("y_sq", {sequences}, {"sequence"}, y_sq));
  outputs[0].head_ids = head_ids;
  outputs[1].head_ids = head_ids;
  return outputs;
}

}  // namespace headwise
