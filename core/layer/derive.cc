// SPDX-License-Identifier: Apache-2.0
#include "core/layer/derive.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rules.h"

namespace headwise {
namespace {

size_t Index(int64_t value) { return static_cast<size_t>(value); }

absl::StatusOr<int64_t> FindHead(const LayerSpec& spec, int64_t id) {
  const auto found = std::find(spec.head_ids.begin(), spec.head_ids.end(), id);
  if (found != spec.head_ids.end()) return found - spec.head_ids.begin();
  return Invalid(
      "heads",
      absl::StrCat("must be ids of the layer's heads (", absl::StrJoin(spec.head_ids, ","), ")"),
      absl::StrCat(id));
}

// Which old entries of an axis the new one has, and how wide they were.
struct Selection {
  std::vector<int64_t> order;   // old indices in their new order
  std::vector<int64_t> widths;  // of the old entries, in elements
};

// Pieces of `values` along an axis of unequal entries; `unit` numbers an element of the axis.
std::vector<float> PickRows(const std::vector<float>& values, const Selection& selection,
                            int64_t unit) {
  std::vector<float> picked;
  if (values.empty()) return picked;
  std::vector<int64_t> begins = {0};
  for (const int64_t width : selection.widths) begins.push_back(begins.back() + width * unit);
  for (const int64_t entry : selection.order) {
    picked.insert(picked.end(), values.begin() + begins[Index(entry)],
                  values.begin() + begins[Index(entry) + 1]);
  }
  return picked;
}

// The same along the columns of a matrix of so many rows.
std::vector<float> PickColumns(const std::vector<float>& values, const Selection& selection,
                               int64_t rows) {
  std::vector<float> picked;
  if (values.empty()) return picked;
  const int64_t columns = static_cast<int64_t>(values.size()) / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = values.begin() + row * columns;
    const std::vector<float> line =
        PickRows(std::vector<float>(begin, begin + columns), selection, 1);
    picked.insert(picked.end(), line.begin(), line.end());
  }
  return picked;
}

template <typename T>
std::vector<T> Pick(const std::vector<T>& values, const std::vector<int64_t>& order) {
  std::vector<T> picked;
  for (const int64_t entry : order) {
    if (!values.empty()) picked.push_back(values[Index(entry)]);
  }
  return picked;
}

// What `selection` leaves out, in the old order.
Selection LeftOut(const Selection& selection) {
  Selection rest{{}, selection.widths};
  const std::set<int64_t> kept(selection.order.begin(), selection.order.end());
  for (int64_t entry = 0; entry < static_cast<int64_t>(rest.widths.size()); ++entry) {
    if (!kept.contains(entry)) rest.order.push_back(entry);
  }
  return rest;
}

// A statistic's rows, of which there are `count`, and the bias that they may have.
struct StatisticRows {
  int64_t* count;
  std::vector<float>*weight, *bias;
};

// Appends rows [., depth] and their bias, which may be empty.
void AddRows(const std::vector<float>& weight, const std::vector<float>& bias, int64_t depth,
             const StatisticRows& to) {
  // Some may have a bias and others none: zeros add nothing.
  const bool biased = !bias.empty() || !to.bias->empty();
  if (biased) to.bias->resize(Index(*to.count), 0.0f);
  to.bias->insert(to.bias->end(), bias.begin(), bias.end());
  to.weight->insert(to.weight->end(), weight.begin(), weight.end());
  *to.count += static_cast<int64_t>(weight.size()) / depth;
  if (biased) to.bias->resize(Index(*to.count), 0.0f);
}

// The rows of q and k that go from `from`, where a norm over the whole width goes on counting them.
void KeepStatistic(const LayerMatrices& from, const Selection& q, const Selection& k,
                   LayerParts* layer) {
  LayerSpec& spec = layer->spec;
  if (!spec.normed_over_width()) return;
  LayerMatrices& to = layer->matrices;
  AddRows(PickRows(from.wq, q, spec.d_model), PickRows(from.bq, q, 1), spec.d_model,
          {&spec.qk_norm->q_statistic_rows, &to.wq_statistic, &to.bq_statistic});
  AddRows(PickRows(from.wk, k, spec.d_memory), PickRows(from.bk, k, 1), spec.d_memory,
          {&spec.qk_norm->k_statistic_rows, &to.wk_statistic, &to.bk_statistic});
}

// The layer with these heads and key/value heads, old axis indices in their new order.
LayerParts Select(const LayerParts& layer, const std::vector<int64_t>& heads,
                  const std::vector<int64_t>& groups) {
  const LayerSpec& old = layer.spec;
  const LayerMatrices& from = layer.matrices;
  const Selection q{heads, old.dk}, z{heads, old.dv};
  const Selection each{heads, std::vector<int64_t>(Index(old.heads), 1)};
  Selection k{groups, {}}, v{groups, {}};
  for (int64_t g = 0; g < old.kv_heads; ++g) {
    k.widths.push_back(old.kv_dk(g));
    v.widths.push_back(old.kv_dv(g));
  }
  LayerParts result{old, from};
  LayerMatrices& to = result.matrices;
  to.wq = PickRows(from.wq, q, old.d_model);
  to.wk = PickRows(from.wk, k, old.d_memory);
  to.wv = PickRows(from.wv, v, old.d_memory);
  to.wo = PickColumns(from.wo, z, old.d_out);
  to.bq = PickRows(from.bq, q, 1);
  to.bk = PickRows(from.bk, k, 1);
  to.bv = PickRows(from.bv, v, 1);
  to.sinks = PickRows(from.sinks, each, 1);
  if (old.position_bias.has_value()) {
    to.position_bias = PickColumns(from.position_bias, each, old.position_bias->buckets);
  }
  // HEAD has one row for all.
  if (old.qk_norm.has_value() && old.qk_norm->span != QkNormSpan::kHead) {
    to.q_norm = PickRows(from.q_norm, q, 1);
    to.q_norm_bias = PickRows(from.q_norm_bias, q, 1);
    to.k_norm = PickRows(from.k_norm, k, 1);
    to.k_norm_bias = PickRows(from.k_norm_bias, k, 1);
  }
  KeepStatistic(from, LeftOut(q), LeftOut(k), &result);
  LayerSpec& spec = result.spec;
  spec.heads = static_cast<int64_t>(heads.size());
  spec.kv_heads = static_cast<int64_t>(groups.size());
  spec.dk = Pick(old.dk, heads);
  spec.dv = Pick(old.dv, heads);
  spec.head_ids = Pick(old.head_ids, heads);
  spec.gates = Pick(old.gates, heads);
  if (spec.position_bias.has_value()) {
    spec.position_bias->slopes = Pick(old.position_bias->slopes, heads);
  }
  spec.query_to_kv.clear();
  for (const int64_t head : heads) {
    const auto group =
        std::find(groups.begin(), groups.end(), old.query_to_kv[Index(head)]) - groups.begin();
    spec.query_to_kv.push_back(group);
  }
  return result;
}

void AddTensor(TensorRole role, const char* name, Shape shape, const std::vector<float>& values,
               DerivedLayer* layer) {
  if (values.empty()) return;
  layer->tensors.push_back({role, name, FloatTensor(std::move(shape), values)});
}

std::vector<float> Joined(const std::vector<float>& a, const std::vector<float>& b,
                          const std::vector<float>& c) {
  std::vector<float> joined = a;
  joined.insert(joined.end(), b.begin(), b.end());
  joined.insert(joined.end(), c.begin(), c.end());
  return joined;
}

void AddSeparate(const LayerParts& layer, DerivedLayer* out) {
  const LayerSpec& spec = layer.spec;
  const LayerMatrices& m = layer.matrices;
  AddTensor(TensorRole::kQWeight, "q.weight", {spec.q_width(), spec.d_model}, m.wq, out);
  AddTensor(TensorRole::kKWeight, "k.weight", {spec.k_width(), spec.d_memory}, m.wk, out);
  AddTensor(TensorRole::kVWeight, "v.weight", {spec.v_width(), spec.d_memory}, m.wv, out);
  AddTensor(TensorRole::kQBias, "q.bias", {spec.q_width()}, m.bq, out);
  AddTensor(TensorRole::kKBias, "k.bias", {spec.k_width()}, m.bk, out);
  AddTensor(TensorRole::kVBias, "v.bias", {spec.v_width()}, m.bv, out);
}

void AddStatistic(const LayerParts& layer, DerivedLayer* out) {
  const LayerMatrices& m = layer.matrices;
  const int64_t q = layer.spec.q_statistic_rows(), k = layer.spec.k_statistic_rows();
  AddTensor(TensorRole::kQStatistic, "q_statistic.weight", {q, layer.spec.d_model}, m.wq_statistic,
            out);
  AddTensor(TensorRole::kKStatistic, "k_statistic.weight", {k, layer.spec.d_memory}, m.wk_statistic,
            out);
  AddTensor(TensorRole::kQStatisticBias, "q_statistic.bias", {q}, m.bq_statistic, out);
  AddTensor(TensorRole::kKStatisticBias, "k_statistic.bias", {k}, m.bk_statistic, out);
}

void AddFused(const LayerParts& layer, DerivedLayer* out) {
  const LayerSpec& spec = layer.spec;
  const LayerMatrices& m = layer.matrices;
  const int64_t width = spec.q_width() + spec.k_width() + spec.v_width();
  AddTensor(TensorRole::kQkvWeight, "qkv.weight", {width, spec.d_model}, Joined(m.wq, m.wk, m.wv),
            out);
  if (m.bq.empty() && m.bk.empty() && m.bv.empty()) return;
  // One of them may have none: zeros add nothing.
  const auto filled = [](const std::vector<float>& bias, int64_t size) {
    return bias.empty() ? std::vector<float>(Index(size), 0.0f) : bias;
  };
  AddTensor(TensorRole::kQkvBias, "qkv.bias", {width},
            Joined(filled(m.bq, spec.q_width()), filled(m.bk, spec.k_width()),
                   filled(m.bv, spec.v_width())),
            out);
}

// W_O's columns of head `r` (axis index) times a gate.
void ScaleOutput(int64_t r, double gate, LayerParts* layer) {
  const LayerSpec& spec = layer->spec;
  int64_t column = 0;
  for (int64_t before = 0; before < r; ++before) column += spec.dv[Index(before)];
  for (int64_t o = 0; o < spec.d_out; ++o) {
    for (int64_t d = 0; d < spec.dv[Index(r)]; ++d) {
      float& weight = layer->matrices.wo[Index(o * spec.z_width() + column + d)];
      weight = static_cast<float>(gate * static_cast<double>(weight));
    }
  }
}

}  // namespace

absl::StatusOr<LayerParts> PruneHeads(const LayerParts& layer, const std::vector<int64_t>& ids) {
  const LayerSpec& spec = layer.spec;
  std::set<int64_t> gone;
  for (const int64_t id : ids) {
    const absl::StatusOr<int64_t> head = FindHead(spec, id);
    if (!head.ok()) return head.status();
    gone.insert(*head);
  }
  if (gone.size() == Index(spec.heads)) {
    return Invalid("heads", "must leave a head", absl::StrCat("all ", spec.heads));
  }
  std::vector<int64_t> heads, groups;
  std::set<int64_t> used;
  for (int64_t r = 0; r < spec.heads; ++r) {
    if (gone.contains(r)) continue;
    heads.push_back(r);
    used.insert(spec.query_to_kv[Index(r)]);
  }
  groups.assign(used.begin(), used.end());
  return Select(layer, heads, groups);
}

absl::StatusOr<LayerParts> PermuteHeads(const LayerParts& layer, const std::vector<int64_t>& ids) {
  const LayerSpec& spec = layer.spec;
  std::vector<int64_t> heads, groups;
  for (const int64_t id : ids) {
    const absl::StatusOr<int64_t> head = FindHead(spec, id);
    if (!head.ok()) return head.status();
    heads.push_back(*head);
  }
  if (ids.size() != Index(spec.heads) ||
      std::set<int64_t>(ids.begin(), ids.end()).size() != ids.size()) {
    return Invalid("heads", absl::StrCat("must name each of the ", spec.heads, " heads once"),
                   absl::StrJoin(ids, ","));
  }
  for (int64_t g = 0; g < spec.kv_heads; ++g) groups.push_back(g);
  return Select(layer, heads, groups);
}

absl::StatusOr<LayerParts> FoldGates(LayerParts layer,
                                     const std::vector<std::pair<int64_t, double>>& gates,
                                     absl::Span<const float> output_bias) {
  const LayerSpec& spec = layer.spec;
  std::set<int64_t> seen;
  for (const auto& [id, gate] : gates) {
    const absl::StatusOr<int64_t> head = FindHead(spec, id);
    if (!head.ok()) return head.status();
    if (!std::isfinite(gate)) return Invalid("gates", "must be finite", absl::StrCat(gate));
    if (!seen.insert(id).second) {
      return Invalid("gates", "must name each head once", absl::StrCat(id));
    }
    ScaleOutput(*head, gate, &layer);
  }
  if (output_bias.empty()) return layer;
  if (static_cast<int64_t>(output_bias.size()) != spec.d_out) {
    return Invalid("output_bias_added", absl::StrCat("must hold ", spec.d_out, " numbers (d_out)"),
                   absl::StrCat(output_bias.size()));
  }
  layer.matrices.bo.resize(Index(spec.d_out), 0.0f);
  for (size_t o = 0; o < output_bias.size(); ++o) layer.matrices.bo[o] += output_bias[o];
  return layer;
}

LayerParts FoldOwnGates(LayerParts layer) {
  for (size_t r = 0; r < layer.spec.gates.size(); ++r) {
    ScaleOutput(static_cast<int64_t>(r), static_cast<double>(layer.spec.gates[r]), &layer);
  }
  layer.spec.gates.clear();
  return layer;
}

absl::StatusOr<DerivedLayer> ToTensors(const LayerParts& layer, bool fused) {
  DerivedLayer out;
  out.spec = layer.spec;
  out.spec.orientation = Orientation::kOutIn;
  out.spec.fused_layout = fused ? FusedLayout::kBlocks : FusedLayout::kSeparate;
  const LayerSpec& spec = out.spec;
  const LayerMatrices& m = layer.matrices;
  if (fused && spec.d_memory != spec.d_model) {
    return Invalid("name",
                   "must be a layer whose q, k and v are computed from one width to combine",
                   absl::StrCat(spec.d_model, " and ", spec.d_memory));
  }
  fused ? AddFused(layer, &out) : AddSeparate(layer, &out);
  AddStatistic(layer, &out);
  AddTensor(TensorRole::kOWeight, "o.weight", {spec.d_out, spec.z_width()}, m.wo, &out);
  AddTensor(TensorRole::kOBias, "o.bias", {spec.d_out}, m.bo, &out);
  const auto flat = [](const std::vector<float>& values) {
    return Shape{static_cast<int64_t>(values.size())};
  };
  AddTensor(TensorRole::kQNorm, "q_norm.weight", flat(m.q_norm), m.q_norm, &out);
  AddTensor(TensorRole::kKNorm, "k_norm.weight", flat(m.k_norm), m.k_norm, &out);
  AddTensor(TensorRole::kQNormBias, "q_norm.bias", flat(m.q_norm_bias), m.q_norm_bias, &out);
  AddTensor(TensorRole::kKNormBias, "k_norm.bias", flat(m.k_norm_bias), m.k_norm_bias, &out);
  AddTensor(TensorRole::kPreNorm, "pre_norm.weight", flat(m.pre_norm), m.pre_norm, &out);
  AddTensor(TensorRole::kPreNormBias, "pre_norm.bias", flat(m.pre_norm_bias), m.pre_norm_bias,
            &out);
  AddTensor(TensorRole::kSinks, "sinks", flat(m.sinks), m.sinks, &out);
  if (spec.position_bias.has_value()) {
    AddTensor(TensorRole::kPositionBias, "position_bias", {spec.position_bias->buckets, spec.heads},
              m.position_bias, &out);
  }
  return out;
}

}  // namespace headwise
