// SPDX-License-Identifier: Apache-2.0
#include "core/layer/weights.h"

#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

using RoleMap = std::map<TensorRole, const RoleTensor*>;
using HeadTensors = std::map<std::pair<TensorRole, int64_t>, const RoleTensor*>;

constexpr int64_t kMaxHead = std::numeric_limits<int64_t>::max();

absl::Status Invalid(TensorRole role, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensors: ", TensorRoleName(role), " ", rule, "; was ", was));
}

// The tensors that are a whole role, and those that are one head's share of it.
struct Given {
  RoleMap whole;
  HeadTensors heads;

  std::vector<const RoleTensor*> AllOf() const {
    std::vector<const RoleTensor*> all;
    for (const auto& [role, tensor] : whole) all.push_back(tensor);
    for (const auto& [key, tensor] : heads) all.push_back(tensor);
    return all;
  }
};

absl::StatusOr<Given> ByRole(const std::vector<RoleTensor>& tensors) {
  Given given;
  for (const RoleTensor& tensor : tensors) {
    const RoleTensor*& place =
        tensor.head < 0 ? given.whole[tensor.role] : given.heads[{tensor.role, tensor.head}];
    if (place == nullptr) {
      place = &tensor;
      continue;
    }
    return Invalid(tensor.role, "must be given once",
                   absl::StrCat("\"", place->name, "\" and \"", tensor.name, "\""));
  }
  return given;
}

absl::Status Require(const RoleMap& by_role, TensorRole role) {
  if (by_role.contains(role)) return absl::OkStatus();
  return Invalid(role, "must be given", "absent");
}

absl::Status Forbid(const RoleMap& by_role, TensorRole role, absl::string_view rule) {
  const auto found = by_role.find(role);
  if (found == by_role.end()) return absl::OkStatus();
  return Invalid(role, rule, absl::StrCat("\"", found->second->name, "\""));
}

// Which roles go together: q, k, v apart; all in one; or, in BLOCKS, q apart and k and v in one.
// Their biases likewise.
absl::Status CheckRoles(const LayerSpec& spec, const RoleMap& by_role) {
  using enum TensorRole;
  absl::Status status = Require(by_role, kOWeight);
  if (spec.fused_layout == FusedLayout::kSeparate) {
    for (const TensorRole role : {kQWeight, kKWeight, kVWeight}) {
      status.Update(Require(by_role, role));
    }
    for (const TensorRole role : {kQkvWeight, kQkvBias, kKvWeight, kKvBias}) {
      status.Update(Forbid(by_role, role, "needs a fused layout"));
    }
    return status;
  }
  const bool q_apart = by_role.contains(kKvWeight) && spec.fused_layout == FusedLayout::kBlocks;
  for (const TensorRole role : {q_apart ? kQkvWeight : kQWeight, kKWeight, kVWeight}) {
    status.Update(Forbid(by_role, role, "does not belong to a fused layout"));
  }
  status.Update(Require(by_role, q_apart ? kQWeight : kQkvWeight));
  if (!q_apart) {
    for (const TensorRole role : {kKvWeight, kKvBias}) {
      status.Update(Forbid(by_role, role, "needs the fused layout BLOCKS and a Q_WEIGHT"));
    }
  }
  for (const TensorRole fused : {kQkvBias, kKvBias}) {
    if (!by_role.contains(fused)) continue;
    const char* const rule =
        fused == kQkvBias ? "does not go with QKV_BIAS" : "does not go with KV_BIAS";
    if (fused == kQkvBias) status.Update(Forbid(by_role, kQBias, rule));
    for (const TensorRole role : {kKBias, kVBias}) status.Update(Forbid(by_role, role, rule));
  }
  if (q_apart) status.Update(Forbid(by_role, kQkvBias, "does not go with KV_WEIGHT"));
  return status;
}

absl::StatusOr<std::vector<float>> ReadTensor(const RoleTensor& tensor, const Shape& expected) {
  if (tensor.view.shape != expected) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.name, ": ", TensorRoleName(tensor.role),
                                                   " must have shape ", ShapeToString(expected),
                                                   "; was ", ShapeToString(tensor.view.shape)));
  }
  return ToFloats(tensor.view, tensor.name);
}

std::vector<float> Transposed(const std::vector<float>& in, int64_t rows, int64_t columns) {
  std::vector<float> out(in.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(RowOffset(c, rows, r))] =
          in[static_cast<size_t>(RowOffset(r, columns, c))];
    }
  }
  return out;
}

// A weight as [out, in], whatever its stored orientation.
absl::StatusOr<std::vector<float>> ReadWeight(const LayerSpec& spec, const RoleTensor& tensor,
                                              int64_t out_width, int64_t in_width) {
  if (spec.orientation == Orientation::kOutIn) return ReadTensor(tensor, {out_width, in_width});
  absl::StatusOr<std::vector<float>> stored = ReadTensor(tensor, {in_width, out_width});
  if (!stored.ok()) return stored;
  return Transposed(*stored, in_width, out_width);
}

absl::Status ReadWeightInto(const LayerSpec& spec, const RoleMap& by_role, TensorRole role,
                            int64_t out_width, int64_t in_width, std::vector<float>* out) {
  absl::StatusOr<std::vector<float>> weight =
      ReadWeight(spec, *by_role.at(role), out_width, in_width);
  if (!weight.ok()) return weight.status();
  *out = *std::move(weight);
  return absl::OkStatus();
}

// Leaves `out` empty where the layer has no such bias.
absl::Status ReadBiasInto(const RoleMap& by_role, TensorRole role, int64_t width,
                          std::vector<float>* out) {
  const auto found = by_role.find(role);
  if (found == by_role.end()) return absl::OkStatus();
  absl::StatusOr<std::vector<float>> bias = ReadTensor(*found->second, {width});
  if (!bias.ok()) return bias.status();
  *out = *std::move(bias);
  return absl::OkStatus();
}

enum class Part : uint8_t { kQ, kK, kV };

// Consecutive rows of a fused weight that belong to one head of one part.
struct Block {
  Part part = Part::kQ;
  int64_t rows = 0;
};

// The blocks of a fused weight from its first row to its last. Within each part the heads come in
// axis order, so unpacking only appends. (PER_GROUP: a group's query heads in axis order.)
std::vector<Block> FusedBlocks(const LayerSpec& spec) {
  std::vector<Block> blocks;
  if (spec.fused_layout == FusedLayout::kBlocks) {
    return {{Part::kQ, spec.q_width()}, {Part::kK, spec.k_width()}, {Part::kV, spec.v_width()}};
  }
  for (int64_t group = 0; group < spec.kv_heads; ++group) {
    if (spec.fused_layout == FusedLayout::kPerHead) {
      blocks.push_back({Part::kQ, spec.dk[static_cast<size_t>(group)]});
    } else {
      for (size_t r = 0; r < spec.dk.size(); ++r) {
        if (spec.query_to_kv[r] == group) blocks.push_back({Part::kQ, spec.dk[r]});
      }
    }
    blocks.push_back({Part::kK, spec.kv_dk(group)});
    blocks.push_back({Part::kV, spec.kv_dv(group)});
  }
  return blocks;
}

struct Parts {
  std::vector<float> q, k, v;
};

// Deals the rows (of `columns` elements) of a fused tensor out to q, k and v.
Parts SplitFused(const std::vector<Block>& blocks, const std::vector<float>& fused,
                 int64_t columns) {
  Parts parts;
  auto row = fused.begin();
  for (const Block& block : blocks) {
    std::vector<float>& out = block.part == Part::kQ   ? parts.q
                              : block.part == Part::kK ? parts.k
                                                       : parts.v;
    const auto end = row + block.rows * columns;
    out.insert(out.end(), row, end);
    row = end;
  }
  return parts;
}

absl::Status ReadFused(const LayerSpec& spec, const RoleMap& by_role, LayerMatrices* out) {
  const std::vector<Block> blocks = FusedBlocks(spec);
  const int64_t rows = spec.q_width() + spec.k_width() + spec.v_width();
  std::vector<float> fused;
  absl::Status status =
      ReadWeightInto(spec, by_role, TensorRole::kQkvWeight, rows, spec.d_model, &fused);
  if (!status.ok()) return status;
  Parts weights = SplitFused(blocks, fused, spec.d_model);
  out->wq = std::move(weights.q);
  out->wk = std::move(weights.k);
  out->wv = std::move(weights.v);
  if (!by_role.contains(TensorRole::kQkvBias)) return absl::OkStatus();
  status = ReadBiasInto(by_role, TensorRole::kQkvBias, rows, &fused);
  if (!status.ok()) return status;
  Parts biases = SplitFused(blocks, fused, 1);
  out->bq = std::move(biases.q);
  out->bk = std::move(biases.k);
  out->bv = std::move(biases.v);
  return absl::OkStatus();
}

// k and v in one [k of all; v of all], q apart.
absl::Status ReadQAndKv(const LayerSpec& spec, const RoleMap& by_role, LayerMatrices* out) {
  const std::vector<Block> blocks = {{Part::kK, spec.k_width()}, {Part::kV, spec.v_width()}};
  const int64_t rows = spec.k_width() + spec.v_width();
  std::vector<float> fused;
  absl::Status status =
      ReadWeightInto(spec, by_role, TensorRole::kQWeight, spec.q_width(), spec.d_model, &out->wq);
  status.Update(ReadWeightInto(spec, by_role, TensorRole::kKvWeight, rows, spec.d_memory, &fused));
  if (!status.ok()) return status;
  Parts weights = SplitFused(blocks, fused, spec.d_memory);
  out->wk = std::move(weights.k);
  out->wv = std::move(weights.v);
  if (!by_role.contains(TensorRole::kKvBias)) return absl::OkStatus();
  status = ReadBiasInto(by_role, TensorRole::kKvBias, rows, &fused);
  if (!status.ok()) return status;
  Parts biases = SplitFused(blocks, fused, 1);
  out->bk = std::move(biases.k);
  out->bv = std::move(biases.v);
  return absl::OkStatus();
}

absl::Status ReadSeparate(const LayerSpec& spec, const RoleMap& by_role, LayerMatrices* out) {
  absl::Status status =
      ReadWeightInto(spec, by_role, TensorRole::kQWeight, spec.q_width(), spec.d_model, &out->wq);
  status.Update(
      ReadWeightInto(spec, by_role, TensorRole::kKWeight, spec.k_width(), spec.d_memory, &out->wk));
  status.Update(
      ReadWeightInto(spec, by_role, TensorRole::kVWeight, spec.v_width(), spec.d_memory, &out->wv));
  return status;
}

absl::Status ReadProjections(const LayerSpec& spec, const RoleMap& by_role, LayerMatrices* out) {
  if (spec.fused_layout == FusedLayout::kSeparate) return ReadSeparate(spec, by_role, out);
  if (by_role.contains(TensorRole::kKvWeight)) return ReadQAndKv(spec, by_role, out);
  return ReadFused(spec, by_role, out);
}

// The heads' own tensors of a QK-norm, one after the other.
absl::Status ReadHeadNorms(const HeadTensors& given, TensorRole role,
                           const std::vector<int64_t>& widths, std::vector<float>* out) {
  for (size_t head = 0; head < widths.size(); ++head) {
    const auto found = given.find({role, static_cast<int64_t>(head)});
    if (found == given.end()) {
      return Invalid(role, absl::StrCat("must be given for each of ", widths.size(), " heads"),
                     absl::StrCat("absent for ", head));
    }
    absl::StatusOr<std::vector<float>> row = ReadTensor(*found->second, {widths[head]});
    if (!row.ok()) return row.status();
    out->insert(out->end(), row->begin(), row->end());
  }
  return absl::OkStatus();
}

// One role of a QK-norm for heads of these `widths`.
absl::Status ReadNormInto(const LayerSpec& spec, const Given& given, TensorRole role,
                          const std::vector<int64_t>& widths, std::vector<float>* out) {
  const auto found = given.whole.find(role);
  const QkNormSpan span = spec.qk_norm->span;
  const bool apart =
      given.heads.lower_bound({role, 0}) != given.heads.upper_bound({role, kMaxHead});
  if (apart && (found != given.whole.end() || span != QkNormSpan::kHeads)) {
    return Invalid(role, "must be one tensor, or one a head with the span HEADS", "both");
  }
  if (apart) return ReadHeadNorms(given.heads, role, widths, out);
  if (found == given.whole.end()) return absl::OkStatus();
  const int64_t sum = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  Shape shape = {span == QkNormSpan::kHead ? widths.front() : sum};
  if (span == QkNormSpan::kHeads && found->second->view.shape.size() == 2 &&
      spec.equal_key_widths()) {
    shape = {static_cast<int64_t>(widths.size()), widths.front()};
  }
  absl::StatusOr<std::vector<float>> norm = ReadTensor(*found->second, shape);
  if (!norm.ok()) return norm.status();
  *out = *std::move(norm);
  return absl::OkStatus();
}

absl::Status ReadQkNorm(const LayerSpec& spec, const Given& given, LayerMatrices* out) {
  std::vector<int64_t> kv_widths;
  for (int64_t g = 0; g < spec.kv_heads; ++g) kv_widths.push_back(spec.kv_dk(g));
  absl::Status status = ReadNormInto(spec, given, TensorRole::kQNorm, spec.dk, &out->q_norm);
  status.Update(ReadNormInto(spec, given, TensorRole::kKNorm, kv_widths, &out->k_norm));
  status.Update(ReadNormInto(spec, given, TensorRole::kQNormBias, spec.dk, &out->q_norm_bias));
  status.Update(ReadNormInto(spec, given, TensorRole::kKNormBias, kv_widths, &out->k_norm_bias));
  if (!status.ok()) return status;
  if (out->q_norm.empty()) return Invalid(TensorRole::kQNorm, "must be given", "absent");
  if (out->k_norm.empty()) return Invalid(TensorRole::kKNorm, "must be given", "absent");
  return absl::OkStatus();
}

// Sinks, the table of position biases and QK-norms, each exactly where the spec has it.
absl::Status ReadExtras(const LayerSpec& spec, const Given& given, LayerMatrices* out) {
  absl::Status status;
  if (spec.sinks) {
    status.Update(Require(given.whole, TensorRole::kSinks));
    status.Update(ReadBiasInto(given.whole, TensorRole::kSinks, spec.heads, &out->sinks));
  } else {
    status.Update(Forbid(given.whole, TensorRole::kSinks, "needs a spec with sinks"));
  }
  if (spec.position_bias && spec.position_bias->kind == PositionBiasKind::kT5Buckets) {
    status.Update(Require(given.whole, TensorRole::kPositionBias));
    if (!status.ok()) return status;
    absl::StatusOr<std::vector<float>> table = ReadTensor(
        *given.whole.at(TensorRole::kPositionBias), {spec.position_bias->buckets, spec.heads});
    if (!table.ok()) return table.status();
    out->position_bias = *std::move(table);
  } else {
    status.Update(Forbid(given.whole, TensorRole::kPositionBias,
                         "needs a spec with position_bias T5_BUCKETS"));
  }
  if (!status.ok() || !spec.qk_norm.has_value()) return status;
  return ReadQkNorm(spec, given, out);
}

// QK-norms where the spec has none, biases where the kind has none, shares of heads elsewhere.
absl::Status CheckNormRoles(const LayerSpec& spec, const Given& given) {
  const auto is_norm = [](TensorRole role) {
    return role >= TensorRole::kQNorm && role <= TensorRole::kKNormBias;
  };
  for (const auto& [key, tensor] : given.heads) {
    if (is_norm(key.first)) continue;
    return Invalid(key.first, "must be one tensor", absl::StrCat("one for head ", key.second));
  }
  absl::Status status;
  for (const auto* tensor : given.AllOf()) {
    if (!is_norm(tensor->role)) continue;
    const bool bias = tensor->role >= TensorRole::kQNormBias;
    const std::string was = absl::StrCat("\"", tensor->name, "\"");
    if (!spec.qk_norm) status.Update(Invalid(tensor->role, "needs a spec with qk_norm", was));
    if (bias && spec.qk_norm && spec.qk_norm->kind != QkNormKind::kLayerNorm) {
      status.Update(Invalid(tensor->role, "needs the kind LAYER_NORM", was));
    }
    const bool q = tensor->role == TensorRole::kQNorm || tensor->role == TensorRole::kQNormBias;
    const int64_t heads = q ? spec.heads : spec.kv_heads;
    if (tensor->head < heads) continue;
    status.Update(Invalid(tensor->role, absl::StrCat("must be of a head below ", heads),
                          absl::StrCat(tensor->head)));
  }
  return status;
}

}  // namespace

const char* TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kQWeight:
      return "Q_WEIGHT";
    case TensorRole::kKWeight:
      return "K_WEIGHT";
    case TensorRole::kVWeight:
      return "V_WEIGHT";
    case TensorRole::kQkvWeight:
      return "QKV_WEIGHT";
    case TensorRole::kOWeight:
      return "O_WEIGHT";
    case TensorRole::kQBias:
      return "Q_BIAS";
    case TensorRole::kKBias:
      return "K_BIAS";
    case TensorRole::kVBias:
      return "V_BIAS";
    case TensorRole::kQkvBias:
      return "QKV_BIAS";
    case TensorRole::kOBias:
      return "O_BIAS";
    case TensorRole::kQNorm:
      return "Q_NORM";
    case TensorRole::kKNorm:
      return "K_NORM";
    case TensorRole::kQNormBias:
      return "Q_NORM_BIAS";
    case TensorRole::kKNormBias:
      return "K_NORM_BIAS";
    case TensorRole::kSinks:
      return "SINKS";
    case TensorRole::kPositionBias:
      return "POSITION_BIAS";
    case TensorRole::kKvWeight:
      return "KV_WEIGHT";
    case TensorRole::kKvBias:
      return "KV_BIAS";
  }
  return "UNKNOWN";
}

absl::StatusOr<LayerMatrices> UnpackWeights(const LayerSpec& spec,
                                            const std::vector<RoleTensor>& tensors) {
  const absl::StatusOr<Given> given = ByRole(tensors);
  if (!given.ok()) return given.status();
  const RoleMap& by_role = given->whole;
  absl::Status status = CheckRoles(spec, by_role);
  status.Update(CheckNormRoles(spec, *given));
  if (!status.ok()) return status;

  LayerMatrices matrices;
  status = ReadProjections(spec, by_role, &matrices);
  status.Update(ReadBiasInto(by_role, TensorRole::kQBias, spec.q_width(), &matrices.bq));
  status.Update(ReadBiasInto(by_role, TensorRole::kKBias, spec.k_width(), &matrices.bk));
  status.Update(ReadBiasInto(by_role, TensorRole::kVBias, spec.v_width(), &matrices.bv));
  status.Update(ReadWeightInto(spec, by_role, TensorRole::kOWeight, spec.d_out, spec.z_width(),
                               &matrices.wo));
  status.Update(ReadBiasInto(by_role, TensorRole::kOBias, spec.d_out, &matrices.bo));
  if (status.ok()) status = ReadExtras(spec, *given, &matrices);
  if (!status.ok()) return status;
  return matrices;
}

}  // namespace headwise
