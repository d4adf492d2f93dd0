// SPDX-License-Identifier: Apache-2.0
#include "core/format/effects.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

namespace headwise {
namespace {

double NormalCdf(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

// Linear between the order statistics around p; reorders `values`.
double Quantile(double p, std::vector<double>* values) {
  const double place = std::clamp(p, 0.0, 1.0) * static_cast<double>(values->size() - 1);
  const auto below = values->begin() + static_cast<int64_t>(place);
  std::nth_element(values->begin(), below, values->end());
  const double low = *below;
  const double share = place - std::floor(place);
  if (share == 0.0 || below + 1 == values->end()) return low;
  return low + share * (*std::min_element(below + 1, values->end()) - low);
}

// Skewness of the influence of single units, / 6 (Efron & Tibshirani 1993, 14.15).
double Acceleration(absl::Span<const double> jackknife) {
  double mean = 0.0, cubes = 0.0, squares = 0.0;
  for (const double value : jackknife) mean += value / static_cast<double>(jackknife.size());
  for (const double value : jackknife) {
    const double d = mean - value;
    squares += d * d;
    cubes += d * d * d;
  }
  return squares > 0.0 ? cubes / (6.0 * squares * std::sqrt(squares)) : 0.0;
}

constexpr std::optional<double> Effect::* kFields[] = {&Effect::l2, &Effect::relative_l2,
                                                       &Effect::cosine};
constexpr std::optional<Interval> EffectIntervals::* kIntervals[] = {
    &EffectIntervals::l2, &EffectIntervals::relative_l2, &EffectIntervals::cosine};

EffectSums Total(const std::vector<EffectSums>& sums) {
  EffectSums total;
  for (const EffectSums& s : sums) total.Add(s);
  return total;
}

// Every field must be defined for all: a mean over draws, unlike one over sequences, leaves none
// out.
Effect MeanOfAll(absl::Span<const Effect> effects) {
  Effect mean = MeanOfDefined(effects);
  for (const auto field : kFields) {
    for (const Effect& effect : effects) {
      if (!(effect.*field).has_value()) (mean.*field).reset();
    }
  }
  return mean;
}

std::optional<Interval> RangeOf(absl::Span<const Effect> effects,
                                std::optional<double> Effect::* field) {
  std::optional<Interval> range;
  for (const Effect& effect : effects) {
    if (!(effect.*field).has_value()) continue;
    const double value = *(effect.*field);
    if (!range.has_value()) range = Interval{.low = value, .high = value};
    range->low = std::min(range->low, value);
    range->high = std::max(range->high, value);
  }
  return range;
}

// Effects of one draw in each resample, added to `fields` / draws.
void AddResampled(const std::vector<EffectSums>& sums, absl::Span<const int64_t> units,
                  const Resamples& resamples, absl::Span<const double> y_sq, double share,
                  std::vector<double>* fields) {
  std::vector<double> own_y(y_sq.empty() ? units.size() : 0), product(units.size()),
      delta(units.size());
  for (size_t u = 0; u < units.size(); ++u) {
    const EffectSums& s = sums[static_cast<size_t>(units[u])];
    if (y_sq.empty()) own_y[u] = s.y_sq;
    product[u] = s.y_delta;
    delta[u] = s.delta_sq;
  }
  if (y_sq.empty()) {
    own_y = resamples.Sums(own_y);
    y_sq = own_y;
  }
  product = resamples.Sums(product);
  delta = resamples.Sums(delta);
  for (size_t i = 0; i < y_sq.size(); ++i) {
    const Effect effect = MakeEffect({y_sq[i], product[i], delta[i]});
    for (size_t f = 0; f < 3; ++f) {
      fields[f][i] += share * (effect.*kFields[f]).value_or(std::nan(""));
    }
  }
}

void AddJackknife(const std::vector<EffectSums>& sums, absl::Span<const int64_t> units,
                  double share, std::vector<double>* fields) {
  const EffectSums all = Total(sums);
  for (size_t u = 0; u < units.size(); ++u) {
    const EffectSums& s = sums[static_cast<size_t>(units[u])];
    const Effect effect =
        MakeEffect({all.y_sq - s.y_sq, all.y_delta - s.y_delta, all.delta_sq - s.delta_sq});
    for (size_t f = 0; f < 3; ++f) {
      fields[f][u] += share * (effect.*kFields[f]).value_or(std::nan(""));
    }
  }
}

}  // namespace

void EffectSums::Add(const EffectSums& other) {
  y_sq += other.y_sq;
  y_delta += other.y_delta;
  delta_sq += other.delta_sq;
}

bool EffectSums::finite() const {
  return std::isfinite(y_sq) && std::isfinite(y_delta) && std::isfinite(delta_sq);
}

Effect MakeEffect(const EffectSums& sums) {
  Effect effect;
  if (!sums.finite()) return effect;
  const double delta_sq = std::max(0.0, sums.delta_sq);
  effect.l2 = std::sqrt(delta_sq);
  if (sums.y_sq <= 0.0) return effect;
  effect.relative_l2 = std::sqrt(delta_sq / sums.y_sq);
  const double ablated_sq = sums.y_sq - 2.0 * sums.y_delta + delta_sq;
  if (ablated_sq > 0.0) {
    const double cosine = (sums.y_sq - sums.y_delta) / std::sqrt(sums.y_sq * ablated_sq);
    effect.cosine = std::clamp(cosine, -1.0, 1.0);
  }
  return effect;
}

Effect MeanOfDefined(absl::Span<const Effect> effects) {
  Effect mean;
  for (const auto field : kFields) {
    double sum = 0.0;
    int64_t count = 0;
    for (const Effect& effect : effects) {
      if (!(effect.*field).has_value()) continue;
      sum += *(effect.*field);
      ++count;
    }
    if (count > 0) mean.*field = sum / static_cast<double>(count);
  }
  return mean;
}

Resamples::Resamples(int64_t units, const BootstrapOptions& options)
    : units_(units), options_(options) {
  const size_t resamples = static_cast<size_t>(options.resamples);
  counts_.assign(static_cast<size_t>(units) * resamples, 0);
  std::mt19937_64 random(options.seed);
  for (size_t i = 0; i < resamples; ++i) {
    for (int64_t u = 0; u < units; ++u) {
      // The high half of a 32 x 64 bit product: even to 2^-32 for any number of units.
      const uint64_t unit = ((random() >> 32) * static_cast<uint64_t>(units)) >> 32;
      ++counts_[unit * resamples + i];
    }
  }
}

std::vector<double> Resamples::Sums(absl::Span<const double> values) const {
  const size_t resamples = static_cast<size_t>(options_.resamples);
  std::vector<double> sums(resamples, 0.0);
  for (size_t u = 0; u < values.size(); ++u) {
    const uint16_t* counts = counts_.data() + u * resamples;
    const double value = values[u];
    for (size_t i = 0; i < resamples; ++i) sums[i] += static_cast<double>(counts[i]) * value;
  }
  return sums;
}

std::optional<Interval> BcaInterval(double estimate, std::vector<double> resampled,
                                    absl::Span<const double> jackknife,
                                    const BootstrapOptions& options) {
  const double count = static_cast<double>(resampled.size());
  double below = 0.0;
  for (const double value : resampled) {
    if (!std::isfinite(value)) return std::nullopt;
    below += value < estimate ? 1.0 : (value == estimate ? 0.5 : 0.0);
  }
  for (const double value : jackknife) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  if (!std::isfinite(estimate)) return std::nullopt;
  const double z0 = NormalQuantile(std::clamp(below / count, 0.5 / count, 1.0 - 0.5 / count));
  const double acceleration = Acceleration(jackknife);
  const auto place = [&](double p) {
    const double z = z0 + NormalQuantile(p);
    return NormalCdf(z0 + z / (1.0 - acceleration * z));
  };
  const double tail = 0.5 * (1.0 - options.level);
  return Interval{.low = Quantile(place(tail), &resampled),
                  .high = Quantile(place(1.0 - tail), &resampled),
                  .level = options.level,
                  .method = IntervalMethod::kBca,
                  .resamples = options.resamples,
                  .seed = options.seed};
}

// Acklam's rational start, then one step of Halley on the complementary error function.
double NormalQuantile(double p) {
  constexpr double kA[] = {-39.69683028665376, 220.9460984245205,  -275.9285104469687,
                           138.3577518672690,  -30.66479806614716, 2.506628277459239};
  constexpr double kB[] = {-54.47609879822406, 161.5858368580409,  -155.6989798598866,
                           66.80131188771972,  -13.28068155288572, 1.0};
  constexpr double kC[] = {-0.007784894002430293, -0.3223964580411365, -2.400758277161838,
                           -2.549732539343734,    4.374664141464968,   2.938163982698783};
  constexpr double kD[] = {0.007784695709041462, 0.3224671290700398, 2.445134137142996,
                           3.754408661907416, 1.0};
  const auto horner = [](absl::Span<const double> c, double x) {
    double sum = 0.0;
    for (const double value : c) sum = sum * x + value;
    return sum;
  };
  constexpr double kTail = 0.02425;
  double z = 0.0;
  if (p < kTail || p > 1.0 - kTail) {
    const double q = std::sqrt(-2.0 * std::log(std::min(p, 1.0 - p)));
    z = horner(kC, q) / horner(kD, q) * (p < 0.5 ? 1.0 : -1.0);
  } else {
    const double q = p - 0.5;
    z = q * horner(kA, q * q) / horner(kB, q * q);
  }
  const double error = NormalCdf(z) - p;
  const double step = error * std::sqrt(2.0 * std::numbers::pi) * std::exp(0.5 * z * z);
  return z - step / (1.0 + 0.5 * z * step);
}

Effect PooledEffect(const DrawSums& draws) {
  std::vector<Effect> effects;
  for (const std::vector<EffectSums>& sums : draws) effects.push_back(MakeEffect(Total(sums)));
  return MeanOfAll(effects);
}

std::vector<Effect> EffectPerSequence(const DrawSums& draws) {
  std::vector<Effect> effects;
  for (size_t s = 0; s < draws.front().size(); ++s) {
    std::vector<Effect> each;
    for (const std::vector<EffectSums>& sums : draws) each.push_back(MakeEffect(sums[s]));
    effects.push_back(MeanOfAll(each));
  }
  return effects;
}

EffectIntervals IntervalsOf(const DrawSums& draws, absl::Span<const int64_t> units,
                            const Resamples* resamples, absl::Span<const double> y_sq) {
  EffectIntervals intervals;
  if (resamples == nullptr) {
    const std::vector<Effect> all = EffectPerSequence(draws);
    std::vector<Effect> each;
    for (const int64_t unit : units) each.push_back(all[static_cast<size_t>(unit)]);
    for (size_t f = 0; f < 3; ++f) intervals.*kIntervals[f] = RangeOf(each, kFields[f]);
    return intervals;
  }
  const Effect estimate = PooledEffect(draws);
  const double share = 1.0 / static_cast<double>(draws.size());
  std::vector<double> resampled[3], jackknife[3];
  for (size_t f = 0; f < 3; ++f) {
    resampled[f].assign(static_cast<size_t>(resamples->options().resamples), 0.0);
    jackknife[f].assign(units.size(), 0.0);
  }
  for (const std::vector<EffectSums>& sums : draws) {
    AddResampled(sums, units, *resamples, y_sq, share, resampled);
    AddJackknife(sums, units, share, jackknife);
  }
  for (size_t f = 0; f < 3; ++f) {
    if (!(estimate.*kFields[f]).has_value()) continue;
    intervals.*kIntervals[f] = BcaInterval(*(estimate.*kFields[f]), std::move(resampled[f]),
                                           jackknife[f], resamples->options());
  }
  return intervals;
}

void PairSums::Add(const PairSums& other) {
  product += other.product;
  a_sq += other.a_sq;
  b_sq += other.b_sq;
  both_sq += other.both_sq;
  y_sq += other.y_sq;
}

std::optional<double> PairSums::interaction() const {
  const double squares = a_sq * b_sq;
  if (!std::isfinite(product) || !std::isfinite(squares) || squares <= 0.0) return std::nullopt;
  return product / std::sqrt(squares);
}

std::optional<double> PairSums::relative_l2() const {
  if (!std::isfinite(both_sq) || !std::isfinite(y_sq) || y_sq <= 0.0) return std::nullopt;
  return std::sqrt(std::max(0.0, both_sq) / y_sq);
}

std::optional<double> PairSums::relative_l2_if_orthogonal() const {
  if (!std::isfinite(a_sq + b_sq) || !std::isfinite(y_sq) || y_sq <= 0.0) return std::nullopt;
  return std::sqrt(std::max(0.0, a_sq + b_sq) / y_sq);
}

}  // namespace headwise
