// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_totals.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace headwise::client {
namespace {

void SetEffect(const Effect& effect, v1::Effect* wire) {
  wire->Clear();
  if (effect.l2.has_value()) wire->set_l2(*effect.l2);
  if (effect.relative_l2.has_value()) wire->set_relative_l2(*effect.relative_l2);
  if (effect.cosine.has_value()) wire->set_cosine(*effect.cosine);
}

void SetInterval(const std::optional<Interval>& interval, v1::Interval* wire) {
  wire->set_low(interval->low);
  wire->set_high(interval->high);
  wire->set_level(interval->level);
  wire->set_method(interval->method == IntervalMethod::kBca ? "BCA" : "RANGE");
  wire->set_resamples(static_cast<uint32_t>(interval->resamples));
  wire->set_seed(interval->seed);
}

void SetIntervals(const EffectIntervals& intervals, v1::EffectIntervals* wire) {
  wire->Clear();
  if (intervals.l2) SetInterval(intervals.l2, wire->mutable_l2());
  if (intervals.relative_l2) SetInterval(intervals.relative_l2, wire->mutable_relative_l2());
  if (intervals.cosine) SetInterval(intervals.cosine, wire->mutable_cosine());
}

// Appends [draws, B, 3] of one answer. An input that an intervention leaves alone has one draw,
// which stands for all.
absl::Status AppendSums(const v1::AblationEffect& effect, size_t sequences, DrawSums* sums) {
  const size_t count = static_cast<size_t>(effect.sums_size());
  if (sequences == 0 && count == 0) return absl::OkStatus();
  const size_t draws = sequences == 0 ? 0 : count / (3 * sequences);
  if (sums->empty()) sums->resize(draws);
  if (draws > 1 && sums->size() == 1) sums->resize(draws, sums->front());
  if (draws == 0 || (draws != sums->size() && draws != 1) || count != draws * sequences * 3) {
    return absl::InternalError(
        absl::StrCat("answer: must hold three sums a draw and sequence; was ", count, " of ",
                     sequences, " sequences"));
  }
  for (size_t draw = 0; draw < sums->size(); ++draw) {
    int at = static_cast<int>(draw % draws * sequences * 3);
    for (size_t s = 0; s < sequences; ++s, at += 3) {
      (*sums)[draw].push_back({effect.sums(at), effect.sums(at + 1), effect.sums(at + 2)});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AblateTotals::Add(v1::AblateResult result) {
  const size_t sequences = static_cast<size_t>(result.lengths_size());
  if (!started_) {
    sums_.resize(static_cast<size_t>(result.ablations_size()));
    pairs_.resize(static_cast<size_t>(result.interactions_size()));
  }
  if (static_cast<size_t>(result.ablations_size()) != sums_.size() ||
      static_cast<size_t>(result.interactions_size()) != pairs_.size()) {
    return absl::InternalError("answer: must hold as many ablations for every input; was others");
  }
  if (started_ && result.layer_version() != total_.layer_version()) {
    return absl::FailedPreconditionError(
        absl::StrCat("layer: must not be replaced between inputs; was version ",
                     total_.layer_version(), " and ", result.layer_version()));
  }
  for (size_t a = 0; a < sums_.size(); ++a) {
    v1::AblationEffect* effect = result.mutable_ablations(static_cast<int>(a));
    const absl::Status appended = AppendSums(*effect, sequences, &sums_[a]);
    if (!appended.ok()) return appended;
    effect->clear_sums();
    effect->clear_means();
  }
  for (size_t i = 0; i < pairs_.size(); ++i) {
    v1::Interaction* pair = result.mutable_interactions(static_cast<int>(i));
    if (pair->sums_size() != 5) return absl::InternalError("answer: must hold a pair's five sums");
    pairs_[i].Add({pair->sums(0), pair->sums(1), pair->sums(2), pair->sums(3), pair->sums(4)});
    pair->clear_sums();
  }
  if (const absl::Status added = grams_.Add(result); !added.ok()) return added;
  // An input that an intervention leaves alone says less of what was done.
  const std::string& text = result.scope().text();
  const std::string done = text.substr(std::min(text.find(';'), text.size()));
  if (done.size() > done_.size()) done_ = done;
  result.clear_tensors();
  if (!started_) {
    started_ = true;
    total_ = std::move(result);
    return absl::OkStatus();
  }
  total_.set_forwards(total_.forwards() + result.forwards());
  total_.set_from_gram(total_.from_gram() && result.from_gram());
  total_.mutable_lengths()->MergeFrom(result.lengths());
  total_.mutable_y_l2_per_sequence()->MergeFrom(result.y_l2_per_sequence());
  if (result.has_prune_plan()) total_.mutable_prune_plan()->Swap(result.mutable_prune_plan());
  total_.set_compute_us(total_.compute_us() + result.compute_us());
  total_.set_queue_us(total_.queue_us() + result.queue_us());
  v1::Scope* scope = total_.mutable_scope();
  scope->set_n_sequences(scope->n_sequences() + result.scope().n_sequences());
  scope->set_n_tokens(scope->n_tokens() + result.scope().n_tokens());
  for (size_t a = 0; a < sums_.size(); ++a) {
    v1::AblationEffect* effect = total_.mutable_ablations(static_cast<int>(a));
    const v1::AblationEffect& other = result.ablations(static_cast<int>(a));
    effect->mutable_per_sequence()->MergeFrom(other.per_sequence());
    effect->set_undefined_sequences(effect->undefined_sequences() + other.undefined_sequences());
    if (effect->undefined_reason().empty()) {
      effect->set_undefined_reason(other.undefined_reason());
    }
  }
  return absl::OkStatus();
}

void AblateTotals::Finish(int ablation, v1::AblationEffect* effect) const {
  const DrawSums& sums = sums_[static_cast<size_t>(ablation)];
  if (sums.empty()) return;
  SetEffect(PooledEffect(sums), effect->mutable_effect());
  SetEffect(MeanOfDefined(EffectPerSequence(sums)), effect->mutable_mean_over_sequences());
}

v1::AblateResult AblateTotals::Take() {
  std::vector<int64_t> units;
  for (int s = 0; s < total_.lengths_size(); ++s) {
    if (total_.lengths(s) > 0) units.push_back(s);
  }
  std::optional<Resamples> resamples;
  if (static_cast<int64_t>(units.size()) >= kLeastSequences && !sums_.empty()) {
    resamples.emplace(static_cast<int64_t>(units.size()), bootstrap_);
  }
  double y_sq = 0.0;
  for (const double y : total_.y_l2_per_sequence()) y_sq += y * y;
  total_.set_y_l2(std::sqrt(y_sq));
  for (int a = 0; a < total_.ablations_size(); ++a) {
    v1::AblationEffect* effect = total_.mutable_ablations(a);
    Finish(a, effect);
    const DrawSums& sums = sums_[static_cast<size_t>(a)];
    if (sums.empty()) continue;
    SetIntervals(IntervalsOf(sums, units, resamples.has_value() ? &*resamples : nullptr),
                 effect->mutable_intervals());
  }
  for (int i = 0; i < total_.interactions_size(); ++i) {
    v1::Interaction* pair = total_.mutable_interactions(i);
    const PairSums& sums = pairs_[static_cast<size_t>(i)];
    pair->clear_interaction();
    pair->clear_relative_l2();
    pair->clear_relative_l2_if_orthogonal();
    if (sums.interaction()) pair->set_interaction(*sums.interaction());
    if (sums.relative_l2()) pair->set_relative_l2(*sums.relative_l2());
    if (sums.relative_l2_if_orthogonal()) {
      pair->set_relative_l2_if_orthogonal(*sums.relative_l2_if_orthogonal());
    }
  }
  total_.mutable_scope()->set_text(absl::StrCat(total_.scope().n_sequences(), " sequences, ",
                                                total_.scope().n_tokens(), " tokens", done_));
  grams_.AppendTo(&total_);
  return std::move(total_);
}

}  // namespace headwise::client
