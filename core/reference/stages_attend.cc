// SPDX-License-Identifier: Apache-2.0
// Scores of queries and keys, and the reading of values by their weights.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include "core/reference/reference_position.h"
#include "core/reference/stages.h"

namespace headwise {

Reach StagedLayer::ReachOf(const ReferenceInput& input) const {
  return plan_.reach.value_or(
      Reach{.causal = input.causal, .bottom_right = input.bottom_right, .window = input.window});
}

bool StagedLayer::InReach(const Reach& reach, const Place& place, int64_t query,
                          int64_t key) const {
  const int64_t at = query + (reach.bottom_right ? place.keys - place.queries : 0);
  if (reach.causal && key > at + reach.shift) return false;
  if (!reach.window.has_value()) return true;
  return reach.causal ? at - key < *reach.window : std::abs(at - key) <= *reach.window;
}

// What the user mask adds to a score: 0, or its own number, or -infinity where it hides the key.
double StagedLayer::MaskTerm(const ReferenceInput& input, const Place& place, int64_t head,
                             int64_t query, int64_t key) const {
  if (input.mask_kind == MaskKind::kUnspecified) return 0.0;
  const int64_t pairs = place.queries * place.keys;
  const int64_t pair = query * place.keys + key;
  int64_t index = place.key_begin + key;
  if (input.mask_form == MaskForm::kPair) index = place.pair_begin + pair;
  if (input.mask_form == MaskForm::kHead) {
    index = spec_.heads * place.pair_begin + head * pairs + pair;
  }
  const double value = input.mask[Index(index)];
  if (input.mask_kind == MaskKind::kAdditive) return value;
  const bool keep = (value != 0.0) == (input.mask_kind == MaskKind::kKeep);
  return keep ? 0.0 : kHidden;
}

bool StagedLayer::HasEmptyRows(const ReferenceInput& input) const {
  if (plan_.attend != AttendWay::kTokens) return false;
  if (plan_.mask != MaskWay::kHide && plan_.mask != MaskWay::kInverted) return false;
  const Reach reach = ReachOf(input);
  const int64_t heads = input.mask_form == MaskForm::kHead ? spec_.heads : 1;
  for (const Place& place : Places(input)) {
    for (int64_t row = 0; place.keys > 0 && row < heads * place.queries; ++row) {
      const int64_t head = row / place.queries, query = row % place.queries;
      bool sees = false;
      for (int64_t key = 0; key < place.keys && !sees; ++key) {
        const bool shown = MaskTerm(input, place, head, query, key) != kHidden &&
                           InReach(reach, place, query, key);
        sees = shown != (plan_.mask == MaskWay::kInverted);
      }
      if (!sees) return true;
    }
  }
  return false;
}

double StagedLayer::PositionBias(int64_t head, double scale, int64_t query_position,
                                 int64_t key_position) const {
  if (!spec_.position_bias.has_value()) return 0.0;
  const PositionBiasSpec& bias = *spec_.position_bias;
  if (bias.kind == PositionBiasKind::kAlibi) {
    return (bias.scaled ? scale : 1.0) * ReferenceAlibi(bias, head, query_position, key_position);
  }
  const int64_t bucket = ReferenceBucket(bias, key_position - query_position);
  return static_cast<double>(matrices_->position_bias[Index(bucket * spec_.heads + head)]);
}

// Scale, position bias, soft-cap, in this order; then the mask as the plan has it.
void StagedLayer::ScoreRow(const ReferenceInput& input, const Place& place, int64_t head,
                           int64_t index, const StageTensors& tensors, Rows* rows) const {
  const int64_t group = spec_.query_to_kv[Index(head)];
  const int64_t query = place.rows[Index(index)];
  const bool own_rows = tensors.rows.size() * Index(q_begin_.back()) == tensors.q.value.size();
  const int64_t q_row = own_rows ? place.row_begin + index : place.query_begin + query;
  const int64_t q_at = q_row * q_begin_.back() + q_begin_[Index(head)];
  const double* q = tensors.q.value.data() + q_at;
  const double* q_bound = bounded() ? tensors.q.bound.data() + q_at : nullptr;
  const int64_t width = spec_.dk[Index(head)];
  const double factor = plan_.score_factor.empty() ? 1.0 : plan_.score_factor[Index(head)];
  const double scale = factor * spec_.head_scale(head);
  const Reach reach = ReachOf(input);
  const int64_t query_position = input.positions[Index(place.query_begin + query)];
  for (int64_t key = 0; key < place.keys; ++key) {
    const int64_t k_at = (place.key_begin + key) * k_begin_.back() + k_begin_[Index(group)];
    const double* k = tensors.k.value.data() + k_at;
    double dot = 0.0;
    for (int64_t i = 0; i < width; ++i) dot += q[i] * k[i];
    const double bias = PositionBias(head, scale, query_position,
                                     input.memory_positions[Index(place.key_begin + key)]);
    const double uncapped = scale * dot + bias;
    double score = uncapped;
    if (spec_.softcap.has_value()) score = *spec_.softcap * std::tanh(score / *spec_.softcap);
    if (!matrices_->sinks.empty() && plan_.sink == SinkWay::kInScores) {
      score += static_cast<double>(matrices_->sinks[Index(head)]);
    }
    const size_t at = Index((head * rows->count + index) * rows->keys + key);
    rows->scores.value[at] = score;
    if (bounded()) {
      const double* k_bound = tensors.k.bound.data() + k_at;
      double square = 0.0, carried = 0.0;
      for (int64_t i = 0; i < width; ++i) {
        square += (q[i] * k[i]) * (q[i] * k[i]);
        carried += std::pow(q_bound[i] * k[i], 2) + std::pow(q[i] * k_bound[i], 2);
      }
      rows->scores.bound[at] =
          std::fabs(scale) *
              (std::sqrt(carried) + SumBound(static_cast<double>(width), std::sqrt(square), dot)) +
          StoreBound(scale * dot, 3.0) + StoreBound(bias, 3.0) + StoreBound(uncapped) +
          (spec_.softcap.has_value() ? StoreBound(uncapped, 4.0) : 0.0);
    }
    const double term = MaskTerm(input, place, head, query, key);
    const bool shown = (term != kHidden && InReach(reach, place, query, key)) !=
                       (plan_.mask == MaskWay::kInverted);
    rows->hidden[at] = !shown;
    rows->visible[at] = shown || (plan_.mask != MaskWay::kHide && plan_.mask != MaskWay::kInverted);
    double masked = term == kHidden ? score : score + term;
    if (!shown && plan_.mask == MaskWay::kMultiplied) masked = 0.0;
    if (!shown && plan_.mask == MaskWay::kCapped) masked = -*spec_.softcap;
    if (plan_.mask == MaskWay::kInverted && term == kHidden) masked = score;
    rows->masked[at] = masked;
  }
}

// z of one head and row from its weights. A hidden value is never read, not even times 0.
void StagedLayer::ReadRow(const Place& place, int64_t head, int64_t index, const Rows& rows,
                          StageTensors* out) const {
  const int64_t group = spec_.query_to_kv[Index(head)];
  const int64_t width = spec_.dv[Index(head)];
  const int64_t z_at = (place.row_begin + index) * z_begin_.back() + z_begin_[Index(head)];
  double* z = out->z.value.data() + z_at;
  const size_t first = Index((head * rows.count + index) * rows.keys);
  std::vector<double> squares(Index(width), 0.0);
  double keys = 0.0;
  for (int64_t key = 0; key < place.keys; ++key) {
    const size_t at = first + Index(key);
    if (!rows.visible[at]) continue;
    keys += 1.0;
    const double* v =
        out->v.value.data() + (place.key_begin + key) * v_begin_.back() + v_begin_[Index(group)];
    const double p = rows.p.value[at];
    for (int64_t i = 0; i < width; ++i) z[i] += p * v[i];
    if (!bounded()) continue;
    for (int64_t i = 0; i < width; ++i) squares[Index(i)] += (p * v[i]) * (p * v[i]);
  }
  if (!matrices_->sinks.empty() && plan_.sink == SinkWay::kInValue) {
    for (int64_t i = 0; i < width; ++i) z[i] += static_cast<double>(matrices_->sinks[Index(head)]);
  }
  if (!bounded()) return;
  const bool late =
      plan_.mask == MaskWay::kAfterSoftmax || plan_.mask == MaskWay::kAddedAfterSoftmax;
  const bool adds_up = plan_.softmax == SoftmaxWay::kKeys && !late && matrices_->sinks.empty();
  double* bound = out->z.bound.data() + z_at;
  for (int64_t key = 0; key < place.keys; ++key) {
    const size_t at = first + Index(key);
    if (!rows.visible[at]) continue;
    const int64_t v_at = (place.key_begin + key) * v_begin_.back() + v_begin_[Index(group)];
    const double* v = out->v.value.data() + v_at;
    const double* v_bound = out->v.bound.data() + v_at;
    for (int64_t i = 0; i < width; ++i) {
      // Where weights add up to 1, what all of a row gain together has no effect.
      bound[i] += std::pow(rows.p.bound[at] * (adds_up ? v[i] - z[i] : v[i]), 2) +
                  std::pow(rows.p.value[at] * v_bound[i], 2);
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    bound[i] = std::sqrt(bound[i]) + SumBound(keys, std::sqrt(squares[Index(i)]), z[i]) +
               StoreBound(z[i], 4.0);
  }
}

void StagedLayer::Attend(const ReferenceInput& input, const StageOptions& options,
                         StageTensors* out) const {
  std::vector<Place> places = Places(input);
  const bool all = options.rows.empty() || plan_.mixes_rows();
  for (Place& place : places) {
    place.row_begin = static_cast<int64_t>(out->rows.size());
    if (all) {
      place.rows.resize(Index(place.queries));
      std::iota(place.rows.begin(), place.rows.end(), int64_t{0});
    } else {
      for (const int64_t row : options.rows) {
        const int64_t query = row - place.query_begin;
        if (query >= 0 && query < place.queries) place.rows.push_back(query);
      }
    }
    for (const int64_t query : place.rows) out->rows.push_back(place.query_begin + query);
  }
  out->z.value.assign(out->rows.size() * Index(z_begin_.back()), 0.0);
  if (bounded()) out->z.bound.assign(out->z.value.size(), 0.0);
  if (plan_.attend != AttendWay::kTokens) return AttendHeads(options, out);
  for (const Place& place : places) {
    Rows rows;
    rows.heads = spec_.heads;
    rows.count = static_cast<int64_t>(place.rows.size());
    rows.keys = place.keys;
    const size_t size = Index(rows.heads * rows.count * rows.keys);
    rows.scores.value.resize(size);
    if (bounded()) rows.scores.bound.resize(size);
    rows.masked.resize(size);
    rows.visible.resize(size);
    rows.hidden.resize(size);
    for (int64_t head = 0; head < spec_.heads; ++head) {
      for (int64_t r = 0; r < rows.count; ++r) ScoreRow(input, place, head, r, *out, &rows);
    }
    Softmax(&rows);
    AfterSoftmax(&rows);
    for (int64_t head = 0; head < spec_.heads; ++head) {
      for (int64_t r = 0; r < rows.count; ++r) ReadRow(place, head, r, rows, out);
    }
    out->hidden.insert(out->hidden.end(), rows.hidden.begin(), rows.hidden.end());
    out->scores.push_back(std::move(rows.scores));
    out->p.push_back(std::move(rows.p));
  }
}

// Each token's heads attend to each other: scores [H, H] a token.
void StagedLayer::AttendHeads(const StageOptions& options, StageTensors* out) const {
  const int64_t heads = spec_.heads;
  const bool own_rows = options.only_given_q_rows;
  for (size_t r = 0; r < out->rows.size(); ++r) {
    const int64_t token = out->rows[r];
    const int64_t q_row = own_rows ? static_cast<int64_t>(r) : token;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t width = spec_.dk[Index(head)], v_width = spec_.dv[Index(head)];
      const int64_t count = plan_.attend == AttendWay::kHeadsOfToken ? heads : head + 1;
      const double* q = out->q.value.data() + q_row * q_begin_.back() + q_begin_[Index(head)];
      std::vector<double> weights;
      for (int64_t other = 0; other < count; ++other) {
        const double* k = out->k.value.data() + token * k_begin_.back() +
                          k_begin_[Index(spec_.query_to_kv[Index(other)])];
        double dot = 0.0;
        for (int64_t i = 0; i < width; ++i) dot += q[i] * k[i];
        weights.push_back(spec_.head_scale(head) * dot);
      }
      const double largest = *std::max_element(weights.begin(), weights.end());
      double sum = 0.0;
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      const int64_t z_at = static_cast<int64_t>(r) * z_begin_.back() + z_begin_[Index(head)];
      for (int64_t other = 0; other < count; ++other) {
        const int64_t v_at =
            token * v_begin_.back() + v_begin_[Index(spec_.query_to_kv[Index(other)])];
        for (int64_t i = 0; i < v_width; ++i) {
          const double p = weights[Index(other)] / sum;
          out->z.value[Index(z_at + i)] += p * out->v.value[Index(v_at + i)];
          if (!bounded()) continue;
          out->z.bound[Index(z_at + i)] +=
              p * (out->v.bound[Index(v_at + i)] +
                   16.0 * (numbers_->store + numbers_->sum + numbers_->input) *
                       (1.0 + std::fabs(largest)) * std::fabs(out->v.value[Index(v_at + i)]));
        }
      }
    }
  }
}

}  // namespace headwise
