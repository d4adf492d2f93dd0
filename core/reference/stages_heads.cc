// SPDX-License-Identifier: Apache-2.0
// From products to heads: bias, clip, split, norm, RoPE.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/reference/reference_norm.h"
#include "core/reference/reference_position.h"
#include "core/reference/stages.h"

namespace headwise {
namespace {

// What RoPE's angles lose in f32, in which everybody takes them: two roundings of the angle.
constexpr double kAngleLoss = 0x1p-23;

std::vector<int64_t> Begins(const std::vector<int64_t>& widths) {
  std::vector<int64_t> begins = {0};
  for (const int64_t width : widths) begins.push_back(begins.back() + width);
  return begins;
}

std::vector<int64_t> KvBegins(const LayerSpec& spec, int64_t (LayerSpec::*width)(int64_t) const) {
  std::vector<int64_t> widths;
  for (int64_t group = 0; group < spec.kv_heads; ++group) widths.push_back((spec.*width)(group));
  return Begins(widths);
}

std::vector<int64_t> Pick(const std::vector<int64_t>& values, int64_t begin,
                          const std::vector<int64_t>& offsets) {
  std::vector<int64_t> picked;
  for (const int64_t offset : offsets) picked.push_back(values[Index(begin + offset)]);
  return picked;
}

}  // namespace

StagedLayer::StagedLayer(LayerSpec spec, std::shared_ptr<const LayerMatrices> matrices,
                         StagePlan plan, std::optional<Numbers> numbers)
    : spec_(std::move(spec)),
      matrices_(std::move(matrices)),
      plan_(std::move(plan)),
      numbers_(numbers),
      q_begin_(Begins(spec_.dk)),
      z_begin_(Begins(spec_.dv)),
      k_begin_(KvBegins(spec_, &LayerSpec::kv_dk)),
      v_begin_(KvBegins(spec_, &LayerSpec::kv_dv)) {}

std::vector<StagedLayer::Place> StagedLayer::Places(const ReferenceInput& input) {
  std::vector<Place> places;
  Place place;
  for (size_t b = 0; b < input.lengths.size(); ++b) {
    place.queries = input.lengths[b];
    place.keys = input.memory_lengths[b];
    int64_t largest = -1;
    for (int64_t t = 0; t < place.queries; ++t) {
      largest = std::max(largest, input.positions[Index(place.query_begin + t)]);
    }
    for (int64_t s = 0; s < place.keys; ++s) {
      largest = std::max(largest, input.memory_positions[Index(place.key_begin + s)]);
    }
    place.length = static_cast<double>(largest) + 1.0;
    places.push_back(place);
    place.query_begin += place.queries;
    place.key_begin += place.keys;
    place.pair_begin += place.queries * place.keys;
  }
  return places;
}

void StagedLayer::AddBias(const std::vector<float>& bias, Bounded* features) const {
  if (!bias.empty()) {
    const size_t width = bias.size();
    for (size_t e = 0; e < features->value.size(); ++e) {
      const double b = static_cast<double>(bias[e % width]);
      features->value[e] += b;
      if (bounded()) {
        features->bound[e] +=
            (numbers_->input + numbers_->store) * std::fabs(b) + StoreBound(features->value[e]);
      }
    }
  }
  if (!spec_.clip.has_value()) return;
  for (double& feature : features->value) {
    if (!std::isnan(feature)) feature = std::clamp(feature, -*spec_.clip, *spec_.clip);
  }
}

// Equal widths are the caller's to see to.
void StagedLayer::Split(const std::vector<int64_t>& lengths, int64_t heads,
                        Bounded* features) const {
  if (plan_.split == SplitWay::kHeads) return;
  for (std::vector<double>* all : {&features->value, &features->bound}) {
    if (all->empty()) continue;
    const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t width = static_cast<int64_t>(all->size()) / rows;
    const int64_t head_width = width / heads;
    const std::vector<double> from = *all;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      for (int64_t t = 0; t < length; ++t) {
        for (int64_t e = 0; e < width; ++e) {
          const int64_t h = e / head_width, i = e % head_width;
          const int64_t source = plan_.split == SplitWay::kNoTranspose
                                     ? (h * length + t) * head_width + i
                                     : t * width + i * heads + h;
          (*all)[Index((begin + t) * width + e)] = from[Index(begin * width + source)];
        }
      }
      begin += length;
    }
  }
}

// One norm over the features of all heads and those of pruned ones, which it leaves as they are.
void StagedLayer::NormaliseWidth(const Norm& norm, int64_t width, const Bounded& statistic,
                                 Bounded* features) const {
  const int64_t rows = static_cast<int64_t>(features->value.size()) / width;
  if (rows == 0) return;
  const int64_t pruned = static_cast<int64_t>(statistic.value.size()) / rows;
  const auto extended = [&](const std::vector<float>& values) {
    std::vector<float> all = values;
    if (!all.empty()) all.resize(Index(width + pruned), 0.0f);
    return all;
  };
  const std::vector<float> weight = extended(norm.weight), bias = extended(norm.bias);
  const ReferenceNorm whole{spec_.qk_norm->kind, spec_.qk_norm->epsilon, weight.data(),
                            bias.empty() ? nullptr : bias.data()};
  const auto joined = [&](const std::vector<double>& own, const std::vector<double>& others,
                          int64_t row) {
    std::vector<double> all(own.begin() + row * width, own.begin() + (row + 1) * width);
    all.insert(all.end(), others.begin() + row * pruned, others.begin() + (row + 1) * pruned);
    return all;
  };
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> value = joined(features->value, statistic.value, row), bound;
    if (bounded()) bound = joined(features->bound, statistic.bound, row);
    NormaliseRow(whole, width + pruned, bounded() ? numbers_->store : 0.0, value.data(),
                 bounded() ? bound.data() : nullptr);
    std::copy_n(value.begin(), width, features->value.begin() + row * width);
    if (bounded()) std::copy_n(bound.begin(), width, features->bound.begin() + row * width);
  }
}

void StagedLayer::Normalise(const Norm& norm, const std::vector<int64_t>& begins,
                            const Bounded& statistic, Bounded* features) const {
  if (!spec_.qk_norm.has_value()) return;
  const QkNormSpan span = spec_.qk_norm->span;
  const int64_t width = begins.back();
  if (span == QkNormSpan::kWidth) return NormaliseWidth(norm, width, statistic, features);
  const int64_t rows = static_cast<int64_t>(features->value.size()) / width;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t part = 0; part + 1 < begins.size(); ++part) {
      // HEAD: the same weights for all.
      const int64_t first = span == QkNormSpan::kHead ? 0 : begins[part];
      const int64_t at = row * width + begins[part];
      const ReferenceNorm own{spec_.qk_norm->kind, spec_.qk_norm->epsilon,
                              norm.weight.data() + first,
                              norm.bias.empty() ? nullptr : norm.bias.data() + first};
      NormaliseRow(own, begins[part + 1] - begins[part], bounded() ? numbers_->store : 0.0,
                   features->value.data() + at, bounded() ? features->bound.data() + at : nullptr);
    }
  }
}

// Rotary embedding of the first dims features of every head: feature pair i turns by
// position * frequency i. Rows from `first_row` on.
void StagedLayer::Rotate(const std::vector<int64_t>& positions, double length,
                         const std::vector<int64_t>& head_begins, int64_t first_row,
                         Bounded* features) const {
  if (!spec_.rope.has_value()) return;
  const RopeSpec& rope = *spec_.rope;
  const std::vector<double> frequencies = ReferenceFrequencies(rope, length);
  const double stretch = ReferenceAttentionFactor(rope);
  const int64_t width = head_begins.back();
  const bool half = rope.layout == RopeLayout::kHalf;
  for (size_t row = 0; row < positions.size(); ++row) {
    for (int64_t i = 0; i < rope.dims / 2; ++i) {
      const double angle = static_cast<double>(positions[row]) * frequencies[Index(i)];
      const double cosine = stretch * std::cos(angle), sine = stretch * std::sin(angle);
      for (size_t head = 0; head + 1 < head_begins.size(); ++head) {
        const int64_t at = (first_row + static_cast<int64_t>(row)) * width + head_begins[head];
        const size_t a = Index(at + (half ? i : 2 * i));
        const size_t b = Index(at + (half ? i + rope.dims / 2 : 2 * i + 1));
        const double first = features->value[a], second = features->value[b];
        features->value[a] = first * cosine - second * sine;
        features->value[b] = second * cosine + first * sine;
        if (!bounded()) continue;
        const double of_angle = kAngleLoss * std::fabs(angle) + kDeviations * numbers_->store;
        const double added = of_angle * std::fabs(stretch) * (std::fabs(first) + std::fabs(second));
        const double ea = features->bound[a], eb = features->bound[b];
        features->bound[a] = std::hypot(ea * cosine, eb * sine) + added;
        features->bound[b] = std::hypot(eb * cosine, ea * sine) + added;
      }
    }
  }
}

void StagedLayer::MakeHeads(const ReferenceInput& input, const Projections& projections,
                            const StageOptions& options, StageTensors* out) const {
  out->q = projections.q;
  out->k = projections.k;
  out->v = projections.v;
  AddBias(matrices_->bq, &out->q);
  AddBias(matrices_->bk, &out->k);
  AddBias(matrices_->bv, &out->v);
  Split(input.lengths, spec_.heads, &out->q);
  Split(input.memory_lengths, spec_.kv_heads, &out->k);
  Split(input.memory_lengths, spec_.kv_heads, &out->v);
  Bounded q_statistic = projections.q_statistic, k_statistic = projections.k_statistic;
  AddBias(matrices_->bq_statistic, &q_statistic);
  AddBias(matrices_->bk_statistic, &k_statistic);
  Normalise({matrices_->q_norm, matrices_->q_norm_bias}, q_begin_, q_statistic, &out->q);
  Normalise({matrices_->k_norm, matrices_->k_norm_bias}, k_begin_, k_statistic, &out->k);
  int64_t q_row = 0;
  for (const Place& place : Places(input)) {
    std::vector<int64_t> queries, keys(Index(place.keys));
    if (options.only_given_q_rows) {
      for (const int64_t row : options.rows) {
        const int64_t query = row - place.query_begin;
        if (query >= 0 && query < place.queries) queries.push_back(query);
      }
    } else {
      queries.resize(Index(place.queries));
      std::iota(queries.begin(), queries.end(), int64_t{0});
    }
    std::iota(keys.begin(), keys.end(), int64_t{0});
    std::vector<int64_t> positions = Pick(input.positions, place.query_begin, queries);
    for (int64_t& position : positions) position += plan_.query_shift;
    const std::vector<int64_t> key_positions = Pick(input.memory_positions, place.key_begin, keys);
    if (plan_.rope_q) Rotate(positions, place.length, q_begin_, q_row, &out->q);
    if (plan_.rope_k) Rotate(key_positions, place.length, k_begin_, place.key_begin, &out->k);
    if (plan_.rope_v) Rotate(key_positions, place.length, v_begin_, place.key_begin, &out->v);
    q_row += static_cast<int64_t>(queries.size());
  }
}

}  // namespace headwise
