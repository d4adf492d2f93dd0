// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/core/audit/planted_writer.h"

namespace headwise {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

size_t At(int64_t i) { return static_cast<size_t>(i); }

Cube Zeros(int64_t a, int64_t b, int64_t c) {
  return Cube(At(a), Table(At(b), std::vector<double>(At(c), 0.0)));
}

void AppendFloats(const Table& rows, std::vector<float>* out) {
  for (const auto& row : rows) {
    for (const double v : row) out->push_back(static_cast<float>(v));
  }
}

// [heads][rows][width] as [rows, heads * width].
Table Packed(const Cube& heads) {
  Table rows(heads[0].size());
  for (size_t t = 0; t < rows.size(); ++t) {
    for (const Table& head : heads) rows[t].insert(rows[t].end(), head[t].begin(), head[t].end());
  }
  return rows;
}

}  // namespace

Cube PlantedWriter::ToHeads(const Table& rows, int64_t heads, int64_t width) const {
  const int64_t length = static_cast<int64_t>(rows.size());
  Cube out = Zeros(heads, length, width);
  std::vector<double> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        int64_t from = t * heads * width + h * width + i;
        if (Is("reshape_split") || Is("reshape_both")) from = h * length * width + t * width + i;
        if (Is("reshape_features")) from = t * heads * width + i * heads + h;
        out[At(h)][At(t)][At(i)] = flat[At(from)];
      }
    }
  }
  return out;
}

void PlantedWriter::Rope(Cube* heads, int64_t shift) const {
  double base = spec_.rope->base;
  if (Is("rope_base")) base = base == 10000.0 ? 500000.0 : 10000.0;
  int64_t dims = spec_.rope->dims;
  if (Is("rope_all_dims")) dims = dk_;
  bool half = spec_.rope->layout == RopeLayout::kHalf;
  if (Is("rope_layout")) half = !half;
  for (Table& head : *heads) {
    for (size_t t = 0; t < head.size(); ++t) {
      std::vector<double>& x = head[t];
      const std::vector<double> old = x;
      for (int64_t i = 0; i < dims / 2; ++i) {
        const double power = static_cast<double>(-2 * i) / static_cast<double>(dims);
        const double angle =
            (static_cast<double>(t) + static_cast<double>(shift)) * std::pow(base, power);
        const double c = Store(std::cos(angle)), s = Store(std::sin(angle));
        const size_t a = At(half ? i : 2 * i), b = At(half ? i + dims / 2 : 2 * i + 1);
        x[a] = Store(Store(old[a] * c) - Store(old[b] * s));
        x[b] = Store(Store(old[b] * c) + Store(old[a] * s));
      }
    }
  }
}

int64_t PlantedWriter::GroupOf(int64_t head) const {
  const int64_t grouped = head / (heads_ / groups_);
  if (Is("gqa_tiled")) return head % groups_;
  if (Is("gqa_next")) return (grouped + 1) % groups_;
  return Is("gqa_first") ? 0 : grouped;
}

bool PlantedWriter::Sees(const PlantedInput& input, const Sequence& s, int64_t query,
                         int64_t key) const {
  const bool padding = key >= s.keys;
  if (padding && !Is("pad_attended") && !Is("pad_inverted")) return false;
  if (!padding && Is("pad_inverted")) return false;
  bool bottom_right = s.bottom_right;
  if (Is("causal_alignment")) bottom_right = !bottom_right;
  const int64_t me = query + (bottom_right ? s.keys - s.length : 0);
  bool sees = true;
  if ((s.causal && !Is("causal_missing")) || Is("causal_added")) {
    int64_t last = me;
    if (Is("causal_strict")) last = me - 1;
    if (Is("causal_future")) last = me + 1;
    sees = key <= last;
  }
  if (spec_.mask.window && !Is("window_ignored") && !Is("causal_missing")) {
    const int64_t w = *spec_.mask.window + (Is("window_plus_one") ? 1 : 0);
    sees = sees && (s.causal ? key > me - w : std::abs(key - me) <= w);
  }
  if (!padding && !input.keep.empty() && input.keep[At(s.first_key + key)] == 0) sees = false;
  return Is("mask_inverted") ? !sees : sees;
}

double PlantedWriter::Score(int64_t head, const std::vector<double>& q,
                            const std::vector<double>& k, int64_t distance) const {
  double dot = 0.0;
  for (size_t i = 0; i < q.size(); ++i) dot = Sum(dot + q[i] * k[i]);
  dot = Store(dot);
  const double usual = 1.0 / std::sqrt(static_cast<double>(dk_));
  double scale = spec_.scale.value_or(usual);
  if (Is("scale_none") || (Is("scale_one_head") && head == 1)) scale = 1.0;
  if (Is("scale_sqrt_width")) scale = 1.0 / std::sqrt(static_cast<double>(spec_.d_model));
  if (Is("scale_sqrt_heads")) scale = 1.0 / std::sqrt(static_cast<double>(heads_));
  if (Is("scale_twice")) scale = scale * scale;
  if (Is("scale_default")) scale = usual;
  double score = Store(dot * Store(scale));
  if (spec_.position_bias && !Is("alibi_missing")) {
    double slope = static_cast<double>(spec_.position_bias->slopes[At(head)]);
    if (Is("alibi_slopes")) {
      slope = std::pow(2.0, -8.0 * static_cast<double>(head + 1) / static_cast<double>(heads_));
    }
    double bias = slope * static_cast<double>(distance);
    if (Is("alibi_sign")) bias = -bias;
    if (Is("alibi_scaled")) bias *= scale;
    score = Store(score + Store(bias));
  }
  return score;
}

// exp(score - max) of what is seen, the extra score last.
std::vector<double> PlantedWriter::Exponentials(const std::vector<double>& scores,
                                                const std::vector<bool>& sees, double extra) const {
  double most = extra;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (sees[j]) most = std::max(most, scores[j]);
  }
  const bool raw = Is("softmax_overflow");
  if (raw) most = 0.0;
  std::vector<double> e(scores.size() + 1, 0.0);
  for (size_t j = 0; j < scores.size(); ++j) {
    if (sees[j]) e[j] = Store(std::exp(Store(scores[j] - most)));
  }
  if (extra != -kInf) e.back() = Store(std::exp(Store(extra - most)));
  return e;
}

std::vector<double> PlantedWriter::Weights(const std::vector<double>& scores,
                                           const std::vector<bool>& sees, int64_t head) const {
  const bool sunk =
      !sinks_.empty() && !Is("sink_dropped") && !Is("sink_in_scores") && !Is("sink_in_value");
  if (std::find(sees.begin(), sees.end(), true) == sees.end() && !sunk) {
    const double each = empty_ == PlantedEmpty::kZeros ? 0.0
                        : empty_ == PlantedEmpty::kNan ? std::numeric_limits<double>::quiet_NaN()
                                                       : 1.0 / static_cast<double>(scores.size());
    return std::vector<double>(scores.size(), each);
  }
  std::vector<double> e = Exponentials(scores, sees, sunk ? sinks_[At(head)] : -kInf);
  double sum = 0.0;
  for (const double v : e) sum = Sum(sum + v);
  for (double& v : e) v = Store(v / sum);
  if (Is("sink_column")) {
    e.erase(e.begin());
  } else {
    e.pop_back();
  }
  return e;
}

// Masks, cap and softmax over a whole sequence.
Cube PlantedWriter::AllWeights(const PlantedInput& input, const Sequence& s,
                               const Cube& scores) const {
  const int64_t keys = static_cast<int64_t>(scores[0].empty() ? 0 : scores[0][0].size());
  Cube p = Zeros(heads_, s.length, keys);
  const bool late = Is("mask_after_softmax") || Is("mask_added_after") || Is("mask_multiplied") ||
                    Is("cap_after_mask");
  for (int64_t h = 0; h < heads_; ++h) {
    for (int64_t t = 0; t < s.length; ++t) {
      std::vector<double> row = scores[At(h)][At(t)];
      std::vector<bool> sees;
      for (int64_t j = 0; j < keys; ++j) sees.push_back(Sees(input, s, t, j));
      const std::vector<bool> meant = sees;
      for (size_t j = 0; j < row.size(); ++j) {
        if (!meant[j] && Is("mask_multiplied")) row[j] = 0.0;
        if (!meant[j] && Is("cap_after_mask")) row[j] = -*spec_.softcap;
      }
      if (late) sees.assign(sees.size(), true);
      std::vector<double>& out = p[At(h)][At(t)];
      out = Weights(row, sees, h);
      if (Is("softmax_none")) {
        for (size_t j = 0; j < row.size(); ++j) out[j] = sees[j] ? row[j] : 0.0;
      }
      if (Is("softmax_twice")) out = Weights(out, sees, h);
      for (size_t j = 0; j < row.size(); ++j) {
        if (!meant[j] && Is("mask_after_softmax")) out[j] = 0.0;
        if (!meant[j] && Is("mask_added_after")) out[j] = Store(out[j] + -1e9);
        if (Is("dropout_scale")) out[j] = Store(out[j] / 0.9);
        if (Is("int8_u8_weights")) out[j] = Store(std::nearbyint(out[j] * 255.0) / 255.0);
      }
    }
  }
  for (int64_t j = 0; j < keys && (Is("softmax_heads") || Is("softmax_queries")); ++j) {
    const int64_t outer = Is("softmax_heads") ? s.length : heads_;
    const int64_t inner = Is("softmax_heads") ? heads_ : s.length;
    for (int64_t a = 0; a < outer; ++a) {
      std::vector<double> line;
      std::vector<bool> sees;
      for (int64_t b = 0; b < inner; ++b) {
        const int64_t h = Is("softmax_heads") ? b : a, t = Is("softmax_heads") ? a : b;
        line.push_back(scores[At(h)][At(t)][At(j)]);
        sees.push_back(Sees(input, s, t, j));
      }
      std::vector<double> e = Exponentials(line, sees, -kInf);
      double sum = 0.0;
      for (const double v : e) sum = Sum(sum + v);
      for (int64_t b = 0; b < inner; ++b) {
        const int64_t h = Is("softmax_heads") ? b : a, t = Is("softmax_heads") ? a : b;
        p[At(h)][At(t)][At(j)] = sees[At(b)] ? Store(e[At(b)] / sum) : 0.0;
      }
    }
  }
  return p;
}

Table PlantedWriter::Reading(const Table& p, const Table& v, int64_t head) const {
  Table z;
  for (const auto& weights : p) {
    z.emplace_back(At(dv_), 0.0);
    for (size_t i = 0; i < z.back().size(); ++i) {
      double sum = 0.0;
      for (size_t j = 0; j < v.size(); ++j) {
        if (weights[j] != 0.0) sum = Sum(sum + weights[j] * v[j][i]);
      }
      z.back()[i] = Store(sum);
      if (Is("sink_in_value")) z.back()[i] = Store(z.back()[i] + sinks_[At(head)]);
    }
  }
  return z;
}

Cube PlantedWriter::WithinTokens(const Cube& q, const Cube& k, const Cube& v) const {
  const int64_t length = static_cast<int64_t>(q[0].size());
  Cube z = Zeros(heads_, length, dv_);
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t h = 0; h < heads_; ++h) {
      std::vector<double> scores;
      Table values;
      for (int64_t o = 0; o < heads_; ++o) {
        const size_t g = At(GroupOf(o));
        double dot = 0.0;
        for (int64_t i = 0; i < dk_; ++i) dot += q[At(h)][At(t)][At(i)] * k[g][At(t)][At(i)];
        scores.push_back(dot * spec_.scale.value_or(1.0 / std::sqrt(static_cast<double>(dk_))));
        values.push_back(v[g][At(t)]);
      }
      std::vector<double> e = Exponentials(scores, std::vector<bool>(At(heads_), true), -kInf);
      double sum = 0.0;
      for (const double x : e) sum += x;
      e.pop_back();
      for (double& x : e) x /= sum;
      z[At(h)][At(t)] = Reading({e}, values, 0)[0];
    }
  }
  return z;
}

// One sequence's heads as the rows that W_O takes.
Table PlantedWriter::Join(const Cube& z) const {
  const int64_t length = static_cast<int64_t>(z[0].size());
  Table rows;
  std::vector<double> flat;
  for (const Table& head : z) {
    for (const auto& row : head) flat.insert(flat.end(), row.begin(), row.end());
  }
  for (int64_t t = 0; t < length; ++t) {
    std::vector<double> row;
    for (int64_t e = 0; e < heads_ * dv_; ++e) {
      int64_t h = e / dv_, i = e % dv_;
      if (Is("heads_reversed")) h = heads_ - 1 - h;
      if (Is("heads_rolled")) h = (h + 1) % heads_;
      if (Is("heads_shuffled")) h = h == 0 ? 1 : h == 1 ? heads_ - 1 : h == heads_ - 1 ? 0 : h;
      if (Is("concat_features")) h = e % heads_, i = e / heads_;
      double value = z[At(h)][At(t)][At(i)];
      if (Is("reshape_merge") || Is("reshape_both")) value = flat[At(t * heads_ * dv_ + e)];
      for (int64_t other = 0; Is("heads_summed") && other < heads_; ++other) {
        value += other == h ? 0.0 : z[At(other)][At(t)][At(i)];
      }
      row.push_back(value);
    }
    rows.push_back(row);
  }
  return rows;
}

// Head after head of the whole batch, cut into rows.
Table PlantedWriter::JoinBatch(const std::vector<Cube>& z) const {
  std::vector<double> flat;
  for (int64_t h = 0; h < heads_; ++h) {
    for (const Cube& sequence : z) {
      for (const auto& row : sequence[At(h)]) flat.insert(flat.end(), row.begin(), row.end());
    }
  }
  Table rows;
  const size_t width = At(heads_ * dv_);
  for (size_t at = 0; at < flat.size(); at += width) {
    rows.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at),
                      flat.begin() + static_cast<std::ptrdiff_t>(at + width));
  }
  return rows;
}

Cube PlantedWriter::Scores(const Cube& q, const Cube& k) const {
  const int64_t length = static_cast<int64_t>(q[0].size());
  Cube scores = Zeros(heads_, length, static_cast<int64_t>(k[0].size()));
  for (int64_t h = 0; h < heads_; ++h) {
    for (int64_t t = 0; t < length; ++t) {
      for (size_t j = 0; j < k[0].size(); ++j) {
        double& score = scores[At(h)][At(t)][j];
        score = Score(h, q[At(h)][At(t)], k[At(GroupOf(h))][j], static_cast<int64_t>(j) - t);
        if (spec_.softcap && !Is("cap_missing")) {
          score = Store(*spec_.softcap * Store(std::tanh(Store(score / *spec_.softcap))));
        }
        if (Is("sink_in_scores")) score = Store(score + sinks_[At(h)]);
      }
    }
  }
  return scores;
}

Table PlantedWriter::Output(const Table& joined, const Table& x) const {
  Table y = Is("wo_missing") ? joined : Linear(joined, wo_, bo_);
  for (size_t t = 0; t < y.size(); ++t) {
    for (size_t o = 0; o < y[t].size(); ++o) {
      if (Is("residual_added")) y[t][o] = Store(y[t][o] + x[t][o]);
      const bool slice_one = o * At(heads_) / y[t].size() == 1;
      if (Is("ablation_after_wo") && slice_one) y[t][o] = 0.0;
    }
  }
  return y;
}

Planted PlantedWriter::Write(const PlantedInput& input) {
  Table x = ToTable(input.x, spec_.d_model);
  if (Is("prenorm_twice")) x = NormAgain(x);
  const Table memory = input.has_memory() ? ToTable(input.memory, spec_.d_memory) : x;
  const std::vector<int64_t>& keys = input.has_memory() ? input.memory_lengths : input.lengths;
  const Table all_q = Linear(x, wq_, bq_), all_k = Linear(memory, wk_, bk_);
  const Table all_v = Linear(memory, wv_, bv_);
  const Table zero(1, std::vector<double>(memory[0].size(), 0.0));
  const Table k_of_zero = Linear(zero, wk_, bk_), v_of_zero = Linear(zero, wv_, bv_);
  const bool pads = Is("pad_attended") || Is("pad_inverted");
  const int64_t longest = *std::max_element(keys.begin(), keys.end());
  Planted out;
  std::vector<Cube> z_all;
  Table joined;
  int64_t row = 0, key_row = 0;
  for (size_t b = 0; b < input.lengths.size(); ++b) {
    Sequence s;
    s.length = input.lengths[b], s.keys = keys[b], s.first_key = key_row;
    s.causal = spec_.mask.causal, s.bottom_right = input.bottom_right;
    const auto slice = [](const Table& t, int64_t first, int64_t count) {
      return Table(t.begin() + first, t.begin() + first + count);
    };
    Table k_rows = slice(all_k, key_row, s.keys), v_rows = slice(all_v, key_row, s.keys);
    for (int64_t i = s.keys; pads && i < longest; ++i) {
      k_rows.push_back(k_of_zero[0]), v_rows.push_back(v_of_zero[0]);
    }
    Cube q = ToHeads(slice(all_q, row, s.length), heads_, dk_);
    Cube k = ToHeads(k_rows, groups_, dk_), v = ToHeads(v_rows, groups_, dv_);
    if (spec_.rope && !Is("rope_missing")) {
      if (!Is("rope_no_q")) Rope(&q, Is("rope_shifted") ? 1 : 0);
      if (!Is("rope_no_k")) Rope(&k, 0);
      if (Is("rope_on_v")) Rope(&v, 0);
    }
    const Cube scores = Scores(q, k);
    const Cube p = AllWeights(input, s, scores);
    Cube z;
    for (int64_t h = 0; h < heads_; ++h) z.push_back(Reading(p[At(h)], v[At(GroupOf(h))], h));
    if (Is("reshape_attend")) z = WithinTokens(q, k, v);
    AppendFloats(Packed(q), &out.q);
    AppendFloats(Packed(k), &out.k);
    AppendFloats(Packed(v), &out.v);
    AppendFloats(Packed(z), &out.z);
    out.scores.emplace_back();
    out.p.emplace_back();
    for (const Table& head : scores) AppendFloats(head, &out.scores.back());
    for (const Table& head : p) AppendFloats(head, &out.p.back());
    const Table rows = Join(z);
    joined.insert(joined.end(), rows.begin(), rows.end());
    z_all.push_back(z);
    row += s.length, key_row += s.keys;
  }
  if (Is("concat_batch")) joined = JoinBatch(z_all);
  AppendFloats(Output(joined, x), &out.y);
  return out;
}

}  // namespace headwise
