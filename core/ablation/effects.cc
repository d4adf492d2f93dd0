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

// Sums of every draw and sequence of ablation `a`.
DrawSums SumsOf(const AblationPlan& plan, const std::vector<SegmentGram>& grams, int64_t heads,
                int64_t sequences, size_t a) {
  const size_t rows = static_cast<size_t>(plan.gram_rows(heads));
  const size_t y = static_cast<size_t>(heads);
  std::vector<HeadAction> actions(y);
  std::vector<Term> terms;
  DrawSums draws(plan.ablations[a].draws, std::vector<EffectSums>(static_cast<size_t>(sequences)));
  for (size_t draw = 0; draw < draws.size(); ++draw) {
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      FindTerms(plan, a, draw, plan.segments[i], &actions, &terms);
      draws[draw][static_cast<size_t>(plan.segments[i].sequence)].Add(
          {grams[i].At(rows, y, y), Product(grams[i], rows, {{y, 1.0}}, terms),
           Product(grams[i], rows, terms, terms)});
    }
  }
  return draws;
}

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

template <typename T>
NamedOutput ToOutput(std::string name, DType dtype, Shape shape, std::vector<std::string> axes,
                     const std::vector<T>& values) {
  NamedOutput output{.name = std::move(name),
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .axes = std::move(axes),
                     .head_ids = {},
                     .offsets = {},
                     .data = std::string(values.size() * sizeof(T), '\0')};
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

int64_t GramTasksAtOnce(int64_t rows) {
  constexpr int64_t kBytes = 64 << 20, kFewest = 64;
  return std::max(kFewest, kBytes / (8 * rows * rows));
}

double AblationBytes(const LayerSpec& spec, const ValidInput& input, const AblationPlan& plan,
                     const BootstrapOptions& bootstrap) {
  const double rows = static_cast<double>(plan.gram_rows(spec.heads));
  const double sequences = static_cast<double>(input.queries.size());
  // A Gram task takes 32 tokens and 1,024 columns, or what is left of them.
  const double tasks =
      (static_cast<double>(input.query_rows) / 32.0 + static_cast<double>(plan.segments.size())) *
      std::ceil(static_cast<double>(spec.d_out) / 1024.0);
  const double at_once =
      std::min(tasks, static_cast<double>(GramTasksAtOnce(plan.gram_rows(spec.heads))));
  double bytes = (static_cast<double>(plan.segments.size()) + at_once) * 8.0 * rows * rows +
                 sequences * 2.0 * static_cast<double>(bootstrap.resamples);
  for (const ReplacementSource& source : plan.sources) {
    if (source.kind != InterventionKind::kUniform && source.kind != InterventionKind::kKnockout) {
      continue;
    }
    bytes += 4.0 * static_cast<double>(input.query_rows) * static_cast<double>(source.width);
  }
  // Fold products, and what they are made from.
  const double fold_rows = static_cast<double>(plan.folds) * static_cast<double>(spec.heads);
  bytes += 8.0 * fold_rows * fold_rows + 12.0 * fold_rows * static_cast<double>(spec.d_out);
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
      const DrawSums sums = SumsOf(*plan, grams, spec.heads, plan->segments.back().sequence + 1, 0);
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
    // As a given order says it: one intervention on all of them.
    const Intervention& added = chosen.ablation.interventions.front();
    if (set.ablation.interventions.empty()) {
      set.ablation.interventions.push_back(added);
    } else {
      Intervention& all = set.ablation.interventions.front();
      all.heads.insert(all.heads.end(), added.heads.begin(), added.heads.end());
      all.groups.insert(all.groups.end(), added.groups.begin(), added.groups.end());
    }
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

EffectMaker::EffectMaker(const AblationPlan& plan, const std::vector<SegmentGram>& grams,
                         const LayerSpec& spec, int64_t sequences,
                         const BootstrapOptions& bootstrap)
    : plan_(plan),
      grams_(grams),
      heads_(spec.heads),
      sequences_(sequences),
      y_sq_(static_cast<size_t>(sequences), 0.0),
      units_(FilledSequences(plan)) {
  const size_t rows = static_cast<size_t>(plan.gram_rows(heads_));
  const size_t y = static_cast<size_t>(heads_);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    y_sq_[static_cast<size_t>(plan.segments[i].sequence)] += grams[i].At(rows, y, y);
  }
  if (static_cast<int64_t>(units_.size()) >= kLeastSequences && !plan.ablations.empty()) {
    resamples_.emplace(static_cast<int64_t>(units_.size()), bootstrap);
    std::vector<double> values;
    for (const int64_t unit : units_) values.push_back(y_sq_[static_cast<size_t>(unit)]);
    y_sq_resampled_ = resamples_->Sums(values);
  }
  if (plan.sweep != SweepKind::kPairs) return;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    first_unit_.insert(first_unit_.end(), plan.units.size() - i - 1, i);
  }
}

double EffectMaker::y_l2() const {
  double total = 0.0;
  for (const double value : y_sq_) total += value;
  return std::sqrt(total);
}

std::vector<double> EffectMaker::y_l2_per_sequence() const {
  std::vector<double> norms;
  for (const double value : y_sq_) norms.push_back(std::sqrt(value));
  return norms;
}

AblationEffect EffectMaker::Effect(size_t a) const {
  DrawSums sums = SumsOf(plan_, grams_, heads_, sequences_, a);
  AblationEffect effect;
  effect.index = static_cast<int64_t>(a);
  effect.ablation = plan_.ablations[a].ablation;
  effect.heads = plan_.ablations[a].heads;
  effect.pooled = PooledEffect(sums);
  effect.per_sequence = EffectPerSequence(sums);
  effect.mean_over_sequences = MeanOfDefined(effect.per_sequence);
  CountUndefined(sums.front(), &effect);
  effect.intervals =
      IntervalsOf(sums, units_, resamples_.has_value() ? &*resamples_ : nullptr, y_sq_resampled_);
  effect.sums = std::move(sums);
  return effect;
}

Interaction EffectMaker::PairOf(size_t a) const {
  const std::vector<int64_t>& first = plan_.units[first_unit_[a]].heads;
  const size_t rows = static_cast<size_t>(plan_.gram_rows(heads_));
  const size_t y = static_cast<size_t>(heads_);
  const auto in_first = [&](const Term& term) {
    const int64_t head =
        term.row < y ? static_cast<int64_t>(term.row) : plan_.variants[term.row - y - 1].head;
    return std::binary_search(first.begin(), first.end(), head);
  };
  std::vector<HeadAction> actions(y);
  std::vector<Term> left, right;
  PairSums pair;
  const double share = 1.0 / static_cast<double>(plan_.ablations[a].draws);
  for (size_t draw = 0; draw < plan_.ablations[a].draws; ++draw) {
    for (size_t i = 0; i < plan_.segments.size(); ++i) {
      FindTerms(plan_, a, draw, plan_.segments[i], &actions, &left);
      const auto rest = std::stable_partition(left.begin(), left.end(), in_first);
      right.assign(rest, left.end());
      left.erase(rest, left.end());
      const SegmentGram& gram = grams_[i];
      const double product = Product(gram, rows, left, right);
      const double a_sq = Product(gram, rows, left, left);
      const double b_sq = Product(gram, rows, right, right);
      pair.Add({share * product, share * a_sq, share * b_sq, share * (a_sq + b_sq + 2.0 * product),
                share * gram.At(rows, y, y)});
    }
  }
  return {plan_.ablations[a].heads, pair};
}

std::vector<NamedOutput> GramOutputs(const AblationPlan& plan,
                                     const std::vector<SegmentGram>& grams,
                                     const std::vector<int64_t>& head_ids, int64_t sequences) {
  const size_t h = head_ids.size();
  const size_t b_count = static_cast<size_t>(sequences);
  const int64_t heads = static_cast<int64_t>(h);
  const size_t rows = static_cast<size_t>(plan.gram_rows(heads));
  std::vector<double> gram(b_count * h * h), b(b_count * h), y_sq(b_count);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const size_t s = static_cast<size_t>(plan.segments[i].sequence);
    y_sq[s] += grams[i].At(rows, h, h);
    for (size_t r = 0; r < h; ++r) {
      b[s * h + r] += grams[i].At(rows, r, h);
      for (size_t c = 0; c < h; ++c) gram[(s * h + r) * h + c] += grams[i].At(rows, r, c);
    }
  }
  std::vector<NamedOutput> outputs;
  outputs.push_back(
      ToOutput("gram", DType::kF64, {sequences, heads, heads}, {"sequence", "head", "head"}, gram));
  outputs.push_back(ToOutput("b", DType::kF64, {sequences, heads}, {"sequence", "head"}, b));
  outputs.push_back(ToOutput("y_sq", DType::kF64, {sequences}, {"sequence"}, y_sq));
  outputs[0].head_ids = head_ids;
  outputs[1].head_ids = head_ids;
  return outputs;
}

std::vector<NamedOutput> MeanOutputs(const SequenceMeans& means, const LayerSpec& spec,
                                     const std::vector<int64_t>& lengths) {
  const int64_t sequences = static_cast<int64_t>(lengths.size());
  std::vector<NamedOutput> outputs;
  outputs.push_back(ToOutput("tokens", DType::kI64, {sequences}, {"sequence"}, lengths));
  outputs.push_back(ToOutput("z_mean", DType::kF64, {sequences, spec.z_width()},
                             {"sequence", "feature"}, means.z));
  outputs.push_back(ToOutput("z_tokens", DType::kI64, {sequences, spec.heads}, {"sequence", "head"},
                             means.tokens));
  outputs[1].head_ids = spec.head_ids;
  outputs[2].head_ids = spec.head_ids;
  int64_t offset = 0;
  for (const int64_t dv : spec.dv) {
    outputs[1].offsets.push_back(offset);
    offset += dv;
  }
  return outputs;
}

}  // namespace headwise
