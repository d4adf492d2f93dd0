// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/effects.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/ablation/sweep.h"
#include "core/batch/validate.h"

namespace headwise {
namespace {

// A row of the Gram matrix and what it counts in Delta.
struct Term {
  size_t row = 0;
  double weight = 0.0;
};

// Delta of draw `draw` of ablation `a` over `segment`. Heads left alone have no term: they may hold
// infinities.
void FindTerms(const AblationPlan& plan, size_t a, size_t draw, const TokenSegment& segment,
               std::vector<HeadAction>* actions, std::vector<Term>* terms) {
  terms->clear();
  plan.Actions(a, draw, segment, actions);
  const size_t heads = actions->size();
  for (size_t r = 0; r < heads; ++r) {
    const HeadAction& action = (*actions)[r];
    if (action.variant >= 0) {
      terms->push_back({heads + 1 + static_cast<size_t>(action.variant), 1.0});
    } else if (action.factor != 1.0f) {
      terms->push_back({r, 1.0 - static_cast<double>(action.factor)});
    }
  }
}

double Product(const SegmentGram& gram, size_t rows, const std::vector<Term>& left,
               const std::vector<Term>& right) {
  double sum = 0.0;
  for (const Term& r : left) {
    for (const Term& s : right) sum += r.weight * s.weight * gram.At(rows, r.row, s.row);
  }
  return sum;
}

class Summer {
 public:
  Summer(const AblationPlan& plan, const std::vector<SegmentGram>& grams, int64_t heads,
         int64_t sequences)
      : plan_(plan),
        grams_(grams),
        heads_(static_cast<size_t>(heads)),
        rows_(static_cast<size_t>(plan.gram_rows(heads))),
        sequences_(static_cast<size_t>(sequences)),
        actions_(heads_) {}

  double YSq(size_t segment) const { return grams_[segment].At(rows_, heads_, heads_); }

  // Sums of every draw and sequence.
  DrawSums Of(size_t a) {
    DrawSums draws(plan_.ablations[a].draws, std::vector<EffectSums>(sequences_));
    for (size_t draw = 0; draw < draws.size(); ++draw) {
      for (size_t i = 0; i < plan_.segments.size(); ++i) {
        FindTerms(plan_, a, draw, plan_.segments[i], &actions_, &left_);
        draws[draw][static_cast<size_t>(plan_.segments[i].sequence)].Add(
            {YSq(i), Product(grams_[i], rows_, {{heads_, 1.0}}, left_),
             Product(grams_[i], rows_, left_, left_)});
      }
    }
    return draws;
  }

  // Sums of the pair of units whose heads `a_heads` and `b_heads` ablation `a` replaces.
  PairSums OfPair(size_t a, const std::vector<int64_t>& a_heads) {
    PairSums pair;
    const double share = 1.0 / static_cast<double>(plan_.ablations[a].draws);
    for (size_t draw = 0; draw < plan_.ablations[a].draws; ++draw) {
      for (size_t i = 0; i < plan_.segments.size(); ++i) {
        FindTerms(plan_, a, draw, plan_.segments[i], &actions_, &left_);
        std::vector<Term> right;
        std::erase_if(left_, [&](const Term& term) {
          const int64_t head = term.row < heads_ ? static_cast<int64_t>(term.row)
                                                 : plan_.variants[term.row - heads_ - 1].head;
          const bool mine = std::binary_search(a_heads.begin(), a_heads.end(), head);
          if (!mine) right.push_back(term);
          return !mine;
        });
        const SegmentGram& gram = grams_[i];
        const double product = Product(gram, rows_, left_, right);
        const double a_sq = Product(gram, rows_, left_, left_);
        const double b_sq = Product(gram, rows_, right, right);
        pair.Add({share * product, share * a_sq, share * b_sq,
                  share * (a_sq + b_sq + 2.0 * product), share * YSq(i)});
      }
    }
    return pair;
  }

 private:
  const AblationPlan& plan_;
  const std::vector<SegmentGram>& grams_;
  const size_t heads_, rows_, sequences_;
  std::vector<HeadAction> actions_;
  std::vector<Term> left_;
};

void CountUndefined(const std::vector<EffectSums>& sums, AblationEffect* effect) {
  bool zero = false, not_finite = false;
  for (const EffectSums& s : sums) {
    if (s.finite() && s.y_sq > 0.0) continue;
    ++effect->undefined_sequences;
    (s.finite() ? zero : not_finite) = true;
  }
  if (zero) effect->undefined_reason = "a sequence has y = 0 (or no tokens)";
  if (not_finite) {
    if (zero) effect->undefined_reason += "; ";
    effect->undefined_reason += "a sequence has NaN or infinity in y";
  }
}

AblationEffect EffectOf(const AblationPlan& plan, size_t a, DrawSums sums) {
  AblationEffect effect;
  effect.index = static_cast<int64_t>(a);
  effect.ablation = plan.ablations[a].ablation;
  effect.heads = plan.ablations[a].heads;
  effect.pooled = PooledEffect(sums);
  effect.per_sequence = EffectPerSequence(sums);
  effect.mean_over_sequences = MeanOfDefined(effect.per_sequence);
  CountUndefined(sums.front(), &effect);
  effect.sums = std::move(sums);
  return effect;
}

// Sequences that have tokens.
std::vector<int64_t> FilledSequences(const AblationPlan& plan) {
  std::vector<int64_t> filled;
  for (const TokenSegment& segment : plan.segments) {
    if (segment.end > segment.begin && (filled.empty() || filled.back() != segment.sequence)) {
      filled.push_back(segment.sequence);
    }
  }
  return filled;
}

void AddInteractions(const AblationPlan& plan, Summer* summer, AblateResult* result) {
  if (plan.sweep != SweepKind::kPairs) return;
  size_t a = 0;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    for (size_t j = i + 1; j < plan.units.size(); ++j, ++a) {
      result->interactions.push_back(
          {plan.ablations[a].heads, summer->OfPair(a, plan.units[i].heads)});
    }
  }
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

absl::Status CheckBootstrapOptions(const BootstrapOptions& options) {
  constexpr int64_t kMostResamples = 100000;
  if (options.resamples < 100 || options.resamples > kMostResamples) {
    return absl::InvalidArgumentError(absl::StrCat("bootstrap.resamples: must be in [100, ",
                                                   kMostResamples, "]; was ", options.resamples));
  }
  if (!(options.level > 0.0 && options.level < 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bootstrap.level: must be in (0, 1); was ", options.level));
  }
  return absl::OkStatus();
}

double AblationBytes(const LayerSpec& spec, const ValidInput& input, const AblationPlan& plan,
                     const BootstrapOptions& bootstrap) {
  const double rows = static_cast<double>(plan.gram_rows(spec.heads));
  const double sequences = static_cast<double>(input.queries.size());
  double bytes = static_cast<double>(plan.segments.size()) * 8.0 * rows * rows +
                 sequences * 2.0 * static_cast<double>(bootstrap.resamples);
  for (const ReplacementSource& source : plan.sources) {
    if (source.kind != InterventionKind::kUniform && source.kind != InterventionKind::kKnockout) {
      continue;
    }
    bytes += 4.0 * static_cast<double>(input.query_rows) * static_cast<double>(source.width);
  }
  for (const ResolvedAblation& ablation : plan.ablations) {
    bytes += sequences * (static_cast<double>(sizeof(Effect)) +
                          static_cast<double>(ablation.draws * sizeof(EffectSums)));
  }
  return bytes;
}

void ChooseGreedily(const std::vector<SegmentGram>& grams, const LayerSpec& spec,
                    AblationPlan* plan) {
  if (!plan->greedy) return;
  const std::vector<ResolvedAblation> singles = std::move(plan->ablations);
  std::vector<size_t> left(singles.size());
  for (size_t i = 0; i < left.size(); ++i) left[i] = i;
  std::vector<ResolvedAblation> sets;
  ResolvedAblation set;
  while (!left.empty()) {
    double least = std::numeric_limits<double>::infinity();
    size_t best = left.front();
    for (const size_t candidate : left) {
      plan->ablations = {set};
      ResolvedAblation& tried = plan->ablations.front();
      tried.interventions.push_back(singles[candidate].interventions.front());
      tried.draws = std::max(tried.draws, singles[candidate].draws);
      const DrawSums sums =
          Summer(*plan, grams, spec.heads, plan->segments.back().sequence + 1).Of(0);
      const double error = PooledEffect(sums).l2.value_or(std::numeric_limits<double>::infinity());
      if (error < least) {
        least = error;
        best = candidate;
      }
    }
    std::erase(left, best);
    const ResolvedAblation& chosen = singles[best];
    set.interventions.push_back(chosen.interventions.front());
    set.draws = std::max(set.draws, chosen.draws);
    set.ablation.interventions.push_back(chosen.ablation.interventions.front());
    std::vector<int64_t> heads;
    for (const int64_t id : spec.head_ids) {
      const auto has = [id](const std::vector<int64_t>& ids) {
        return std::find(ids.begin(), ids.end(), id) != ids.end();
      };
      if (has(set.heads) || has(chosen.heads)) heads.push_back(id);
    }
    set.heads = std::move(heads);
    sets.push_back(set);
  }
  plan->ablations = std::move(sets);
}

void ComputeEffects(const AblationPlan& plan, const std::vector<SegmentGram>& grams,
                    const LayerSpec& spec, int64_t sequences, const BootstrapOptions& bootstrap,
                    AblateResult* result) {
  Summer summer(plan, grams, spec.heads, sequences);
  std::vector<double> y_sq(static_cast<size_t>(sequences), 0.0);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    y_sq[static_cast<size_t>(plan.segments[i].sequence)] += summer.YSq(i);
  }
  double total = 0.0;
  for (const double value : y_sq) {
    total += value;
    result->y_l2_per_sequence.push_back(std::sqrt(value));
  }
  result->y_l2 = std::sqrt(total);
  const std::vector<int64_t> units = FilledSequences(plan);
  std::optional<Resamples> resamples;
  if (static_cast<int64_t>(units.size()) >= kLeastSequences && !plan.ablations.empty()) {
    resamples.emplace(static_cast<int64_t>(units.size()), bootstrap);
  }
  for (size_t a = 0; a < plan.ablations.size(); ++a) {
    result->ablations.push_back(EffectOf(plan, a, summer.Of(a)));
    AblationEffect& effect = result->ablations.back();
    effect.intervals =
        IntervalsOf(effect.sums, units, resamples.has_value() ? &*resamples : nullptr);
  }
  AddInteractions(plan, &summer, result);
}

std::vector<NamedOutput> GramOutputs(const AblationPlan& plan,
                                     const std::vector<SegmentGram>& grams,
                                     const std::vector<int64_t>& head_ids, int64_t sequences) {
  const size_t h = head_ids.size();
  const size_t b_count = static_cast<size_t>(sequences);
  const size_t rows = static_cast<size_t>(plan.gram_rows(static_cast<int64_t>(h)));
  std::vector<double> gram(b_count * h * h), b(b_count * h), y_sq(b_count);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const size_t s = static_cast<size_t>(plan.segments[i].sequence);
    y_sq[s] += grams[i].At(rows, h, h);
    for (size_t r = 0; r < h; ++r) {
      b[s * h + r] += grams[i].At(rows, r, h);
      for (size_t c = 0; c < h; ++c) gram[(s * h + r) * h + c] += grams[i].At(rows, r, c);
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
