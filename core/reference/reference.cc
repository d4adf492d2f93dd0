// SPDX-License-Identifier: Apache-2.0
#include "core/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "core/reference/reference_position.h"

namespace headwise {

// A sequence's place in the packed tensors.
struct ReferenceLayer::Sequence {
  int64_t query_begin = 0;
  int64_t queries = 0;  // T
  int64_t key_begin = 0;
  int64_t keys = 0;        // S
  int64_t pair_begin = 0;  // sum of T * S of the sequences before
};

namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

size_t Index(int64_t value) { return static_cast<size_t>(value); }

// First column of each head, and past the last one.
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

// The rows begin + offsets of `in` [., width of in], each times `weight` [in, out], plus `bias`.
std::vector<double> Project(const std::vector<double>& weight, const std::vector<double>& bias,
                            const std::vector<double>& in, int64_t begin,
                            const std::vector<int64_t>& offsets) {
  const size_t out_width = bias.size();
  const size_t in_width = weight.size() / out_width;
  std::vector<double> out;
  for (const int64_t offset : offsets) {
    std::vector<double> row = bias;
    const double* token = in.data() + Index(begin + offset) * in_width;
    for (size_t i = 0; i < in_width; ++i) {
      for (size_t o = 0; o < out_width; ++o) row[o] += token[i] * weight[i * out_width + o];
    }
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

std::vector<int64_t> Counting(int64_t count) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(i);
  return values;
}

std::vector<int64_t> Pick(const std::vector<int64_t>& values, int64_t begin,
                          const std::vector<int64_t>& offsets) {
  std::vector<int64_t> picked;
  for (const int64_t offset : offsets) picked.push_back(values[Index(begin + offset)]);
  return picked;
}

// The causal triangle and the window, by index.
bool InReach(const ReferenceInput& input, int64_t queries, int64_t keys, int64_t query,
             int64_t key) {
  const int64_t place = query + (input.bottom_right ? keys - queries : 0);
  if (input.causal && key > place) return false;
  if (!input.window.has_value()) return true;
  return input.causal ? place - key < *input.window : std::abs(place - key) <= *input.window;
}

// Softmax over the entries that are not hidden; hidden ones get 0, and so does everything where
// all are hidden. A sink takes its share and gives it to nobody. A NaN that may be seen makes every
// visible entry NaN.
std::vector<double> Softmax(const std::vector<double>& scores, const std::vector<bool>& visible,
                            std::optional<double> sink) {
  double largest = sink.value_or(kHidden);
  for (size_t j = 0; j < scores.size(); ++j) {
    if (visible[j]) largest = std::max(largest, scores[j]);
  }
  std::vector<double> weights(scores.size(), 0.0);
  double sum = sink.has_value() ? std::exp(*sink - largest) : 0.0;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (!visible[j]) continue;
    weights[j] = std::exp(scores[j] - largest);
    sum += weights[j];
  }
  for (size_t j = 0; j < scores.size(); ++j) {
    if (visible[j]) weights[j] /= sum;
  }
  return weights;
}

// One norm over x [width] with these weights and biases (null: none).
void NormaliseRow(const QkNormSpec& norm, int64_t width, const float* weight, const float* bias,
                  double* x) {
  const double count = static_cast<double>(width);
  double mean = 0.0;
  if (norm.kind == QkNormKind::kLayerNorm) {
    for (int64_t i = 0; i < width; ++i) mean += x[i] / count;
  }
  double square = 0.0;
  for (int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean) / count;
  const double deviation = std::sqrt(square + norm.epsilon);
  for (int64_t i = 0; i < width; ++i) {
    double w = static_cast<double>(weight[i]);
    if (norm.kind == QkNormKind::kRmsPlusOne) w += 1.0;
    x[i] = (x[i] - mean) / deviation * w;
    if (bias != nullptr) x[i] += static_cast<double>(bias[i]);
  }
}

}  // namespace

ReferenceLayer::Projection ReferenceLayer::MakeProjection(const std::vector<float>& weight,
                                                          const std::vector<float>& bias,
                                                          int64_t in_width, int64_t out_width) {
  Projection projection;
  for (int64_t i = 0; i < in_width; ++i) {
    for (int64_t o = 0; o < out_width; ++o) {
      projection.weight.push_back(weight[Index(o * in_width + i)]);
    }
  }
  projection.bias.assign(bias.begin(), bias.end());
  projection.bias.resize(Index(out_width), 0.0);
  return projection;
}

ReferenceLayer::ReferenceLayer(const LayerSpec& spec, const LayerMatrices& matrices)
    : spec_(spec),
      q_(MakeProjection(matrices.wq, matrices.bq, spec.d_model, spec.q_width())),
      k_(MakeProjection(matrices.wk, matrices.bk, spec.d_memory, spec.k_width())),
      v_(MakeProjection(matrices.wv, matrices.bv, spec.d_memory, spec.v_width())),
      q_norm_{matrices.q_norm, matrices.q_norm_bias},
      k_norm_{matrices.k_norm, matrices.k_norm_bias},
      sinks_(matrices.sinks),
      table_(matrices.position_bias),
      wo_(matrices.wo),
      bo_(matrices.bo),
      q_begin_(Begins(spec.dk)),
      z_begin_(Begins(spec.dv)),
      k_begin_(KvBegins(spec, &LayerSpec::kv_dk)),
      v_begin_(KvBegins(spec, &LayerSpec::kv_dv)) {}

void ReferenceLayer::Clip(std::vector<double>* features) const {
  if (!spec_.clip.has_value()) return;
  for (double& feature : *features) {
    if (!std::isnan(feature)) feature = std::clamp(feature, -*spec_.clip, *spec_.clip);
  }
}

void ReferenceLayer::Normalise(const Norm& norm, const std::vector<int64_t>& head_begins,
                               std::vector<double>* features) const {
  if (!spec_.qk_norm.has_value()) return;
  const QkNormSpan span = spec_.qk_norm->span;
  std::vector<int64_t> begins = head_begins;
  if (span == QkNormSpan::kWidth) begins = {0, head_begins.back()};
  const int64_t rows = static_cast<int64_t>(features->size()) / head_begins.back();
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t part = 0; part + 1 < begins.size(); ++part) {
      // HEAD: the same weights for all.
      const int64_t first = span == QkNormSpan::kHead ? 0 : begins[part];
      NormaliseRow(*spec_.qk_norm, begins[part + 1] - begins[part], norm.weight.data() + first,
                   norm.bias.empty() ? nullptr : norm.bias.data() + first,
                   features->data() + row * head_begins.back() + begins[part]);
    }
  }
}

// Rotary embedding of the first dims features of every head: feature pair i turns by
// position * frequency i.
void ReferenceLayer::Rotate(const std::vector<int64_t>& positions, double length,
                            const std::vector<int64_t>& head_begins,
                            std::vector<double>* features) const {
  if (!spec_.rope.has_value()) return;
  const RopeSpec& rope = *spec_.rope;
  const std::vector<double> frequencies = ReferenceFrequencies(rope, length);
  const double stretch = ReferenceAttentionFactor(rope);
  const int64_t width = head_begins.back();
  for (size_t row = 0; row < positions.size(); ++row) {
    for (size_t head = 0; head + 1 < head_begins.size(); ++head) {
      double* x = features->data() + static_cast<int64_t>(row) * width + head_begins[head];
      for (int64_t i = 0; i < rope.dims / 2; ++i) {
        const double angle = static_cast<double>(positions[row]) * frequencies[Index(i)];
        const double cosine = stretch * std::cos(angle), sine = stretch * std::sin(angle);
        const bool half = rope.layout == RopeLayout::kHalf;
        double& first = x[half ? i : 2 * i];
        double& second = x[half ? i + rope.dims / 2 : 2 * i + 1];
        const double turned = first * cosine - second * sine;
        second = second * cosine + first * sine;
        first = turned;
      }
    }
  }
}

// Scale, position bias, soft-cap, in this order.
double ReferenceLayer::Score(int64_t head, double dot, int64_t query_position,
                             int64_t key_position) const {
  const double scale = spec_.head_scale(head);
  double score = scale * dot;
  if (spec_.position_bias.has_value()) {
    const PositionBiasSpec& bias = *spec_.position_bias;
    if (bias.kind == PositionBiasKind::kAlibi) {
      score +=
          (bias.scaled ? scale : 1.0) * ReferenceAlibi(bias, head, query_position, key_position);
    } else {
      const int64_t bucket = ReferenceBucket(bias, key_position - query_position);
      score += static_cast<double>(table_[Index(bucket * spec_.heads + head)]);
    }
  }
  if (spec_.softcap.has_value()) score = *spec_.softcap * std::tanh(score / *spec_.softcap);
  return score;
}

// What the user mask adds to a score: 0, or its own number, or -infinity where it hides the key.
double ReferenceLayer::MaskTerm(const ReferenceInput& input, const Sequence& sequence, int64_t head,
                                int64_t query, int64_t key) const {
  if (input.mask_kind == MaskKind::kUnspecified) return 0.0;
  const int64_t pairs = sequence.queries * sequence.keys;
  const int64_t pair = query * sequence.keys + key;
  int64_t index = sequence.key_begin + key;
  if (input.mask_form == MaskForm::kPair) index = sequence.pair_begin + pair;
  if (input.mask_form == MaskForm::kHead) {
    index = spec_.heads * sequence.pair_begin + head * pairs + pair;
  }
  const double value = input.mask[Index(index)];
  if (input.mask_kind == MaskKind::kAdditive) return value;
  const bool keep = (value != 0.0) == (input.mask_kind == MaskKind::kKeep);
  return keep ? 0.0 : kHidden;
}

// Scores, weights and reading of one head for the query out->rows[row].
void ReferenceLayer::Attend(const ReferenceInput& input, const Sequence& sequence, int64_t head,
                            int64_t row, ReferenceSequence* out) const {
  const int64_t group = spec_.query_to_kv[Index(head)];
  const int64_t query = out->rows[Index(row)];
  const double* q = out->q.data() + row * q_begin_.back() + q_begin_[Index(head)];
  std::vector<double> masked(Index(sequence.keys), 0.0);
  std::vector<bool> visible(Index(sequence.keys), false);
  for (int64_t key = 0; key < sequence.keys; ++key) {
    const double* k = out->k.data() + key * k_begin_.back() + k_begin_[Index(group)];
    double dot = 0.0;
    for (int64_t i = 0; i < spec_.dk[Index(head)]; ++i) dot += q[i] * k[i];
    const double score = Score(head, dot, input.positions[Index(sequence.query_begin + query)],
                               input.memory_positions[Index(sequence.key_begin + key)]);
    out->scores.push_back(score);

    const double term = MaskTerm(input, sequence, head, query, key);
    visible[Index(key)] =
        term != kHidden && InReach(input, sequence.queries, sequence.keys, query, key);
    masked[Index(key)] = score + term;
  }

  std::optional<double> sink;
  if (!sinks_.empty()) sink = static_cast<double>(sinks_[Index(head)]);
  const std::vector<double> p = Softmax(masked, visible, sink);
  out->p.insert(out->p.end(), p.begin(), p.end());
  double* z = out->z.data() + row * z_begin_.back() + z_begin_[Index(head)];
  for (int64_t key = 0; key < sequence.keys; ++key) {
    if (!visible[Index(key)]) continue;  // a hidden value is never read, not even times 0
    const double* v = out->v.data() + key * v_begin_.back() + v_begin_[Index(group)];
    for (int64_t i = 0; i < spec_.dv[Index(head)]; ++i) z[i] += p[Index(key)] * v[i];
  }
}

// The layer's own gates, then the request's.
void ReferenceLayer::Gate(const std::vector<double>& gates, const Sequence& sequence,
                          ReferenceSequence* out) const {
  for (size_t row = 0; row < out->rows.size(); ++row) {
    const int64_t token = sequence.query_begin + out->rows[row];
    for (int64_t head = 0; head < spec_.heads; ++head) {
      double gate = spec_.gates.empty() ? 1.0 : static_cast<double>(spec_.gates[Index(head)]);
      if (!gates.empty()) gate *= gates[Index(token * spec_.heads + head)];
      double* z = out->z.data() + static_cast<int64_t>(row) * z_begin_.back();
      for (int64_t i = z_begin_[Index(head)]; i < z_begin_[Index(head) + 1]; ++i) {
        z[i] = gate == 0.0 ? 0.0 : gate * z[i];
      }
    }
  }
}

// Each head's share z_r W_O^(r), and their sum with b_o.
void ReferenceLayer::ProjectOut(ReferenceSequence* out) const {
  const int64_t z_width = z_begin_.back();
  for (size_t row = 0; row < out->rows.size(); ++row) {
    const double* z = out->z.data() + static_cast<int64_t>(row) * z_width;
    std::vector<double> y(bo_.begin(), bo_.end());
    y.resize(Index(spec_.d_out), 0.0);
    for (int64_t head = 0; head < spec_.heads; ++head) {
      for (int64_t o = 0; o < spec_.d_out; ++o) {
        double share = 0.0;
        for (int64_t i = z_begin_[Index(head)]; i < z_begin_[Index(head) + 1]; ++i) {
          share += z[i] * static_cast<double>(wo_[Index(o * z_width + i)]);
        }
        out->contributions.push_back(share);
        y[Index(o)] += share;
      }
    }
    out->y.insert(out->y.end(), y.begin(), y.end());
  }
}

// The sequence's largest position, of queries and keys, + 1.
double ReferenceLayer::PositionLength(const ReferenceInput& input, const Sequence& sequence) {
  int64_t largest = -1;
  for (int64_t t = 0; t < sequence.queries; ++t) {
    largest = std::max(largest, input.positions[Index(sequence.query_begin + t)]);
  }
  for (int64_t s = 0; s < sequence.keys; ++s) {
    largest = std::max(largest, input.memory_positions[Index(sequence.key_begin + s)]);
  }
  return static_cast<double>(largest) + 1.0;
}

ReferenceSequence ReferenceLayer::RunSequence(const ReferenceInput& input,
                                              const ReferenceOptions& options,
                                              const Sequence& sequence) const {
  ReferenceSequence out;
  out.keys = sequence.keys;
  out.rows = Counting(sequence.queries);
  if (!options.rows.empty()) {
    out.rows.clear();
    for (const int64_t row : options.rows) {
      const int64_t query = row - sequence.query_begin;
      if (query >= 0 && query < sequence.queries) out.rows.push_back(query);
    }
    if (out.rows.empty()) return out;
  }
  const std::vector<int64_t> keys = Counting(sequence.keys);
  const double length = PositionLength(input, sequence);
  out.q = Project(q_.weight, q_.bias, input.x, sequence.query_begin, out.rows);
  out.k = Project(k_.weight, k_.bias, input.memory, sequence.key_begin, keys);
  out.v = Project(v_.weight, v_.bias, input.memory, sequence.key_begin, keys);
  for (std::vector<double>* features : {&out.q, &out.k, &out.v}) Clip(features);
  Normalise(q_norm_, q_begin_, &out.q);
  Normalise(k_norm_, k_begin_, &out.k);
  Rotate(Pick(input.positions, sequence.query_begin, out.rows), length, q_begin_, &out.q);
  Rotate(Pick(input.memory_positions, sequence.key_begin, keys), length, k_begin_, &out.k);
  out.z.resize(out.rows.size() * Index(z_begin_.back()), 0.0);
  for (int64_t head = 0; head < spec_.heads; ++head) {
    for (size_t row = 0; row < out.rows.size(); ++row) {
      Attend(input, sequence, head, static_cast<int64_t>(row), &out);
    }
  }
  Gate(options.gates, sequence, &out);
  ProjectOut(&out);
  return out;
}

std::vector<ReferenceSequence> ReferenceLayer::Run(const ReferenceInput& input,
                                                   const ReferenceOptions& options) const {
  std::vector<ReferenceSequence> results;
  Sequence sequence;
  for (size_t b = 0; b < input.lengths.size(); ++b) {
    sequence.queries = input.lengths[b];
    sequence.keys = input.memory_lengths[b];
    results.push_back(RunSequence(input, options, sequence));
    sequence.query_begin += sequence.queries;
    sequence.key_begin += sequence.keys;
    sequence.pair_begin += sequence.queries * sequence.keys;
  }
  return results;
}

}  // namespace headwise
