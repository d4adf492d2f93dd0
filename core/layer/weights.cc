// SPDX-License-Identifier: Apache-2.0
#include "core/layer/weights.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/layer/stored_weights.h"

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

// The rows of a norm's statistic are there where the spec has them.
absl::Status CheckStatisticRoles(const LayerSpec& spec, const RoleMap& by_role) {
  using enum TensorRole;
  absl::Status status;
  const auto check = [&](int64_t rows, TensorRole weight, TensorRole bias, const char* rule) {
    if (rows > 0) return status.Update(Require(by_role, weight));
    for (const TensorRole role : {weight, bias}) status.Update(Forbid(by_role, role, rule));
  };
  check(spec.q_statistic_rows(), kQStatistic, kQStatisticBias,
        "needs a spec with qk_norm.q_statistic_rows");
  check(spec.k_statistic_rows(), kKStatistic, kKStatisticBias,
        "needs a spec with qk_norm.k_statistic_rows");
  return status;
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

absl::Status CheckShape(const RoleTensor& tensor, const Shape& expected) {
  if (tensor.view.shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(tensor.name, ": ", TensorRoleName(tensor.role),
                                                 " must have shape ", ShapeToString(expected),
                                                 "; was ", ShapeToString(tensor.view.shape)));
}

absl::StatusOr<std::vector<float>> ReadTensor(const RoleTensor& tensor, const Shape& expected) {
  if (absl::Status right = CheckShape(tensor, expected); !right.ok()) return right;
  TensorView view = tensor.view;
  std::vector<char> bytes;
  if (view.data == nullptr && tensor.read != nullptr) {
    bytes.resize(view.bytes());
    if (absl::Status read = tensor.read(0, absl::MakeSpan(bytes)); !read.ok()) return read;
    view.data = bytes.data();
  }
  return ToFloats(view, tensor.name);
}

// The stored weights' shapes and dtypes; whether they are there, CheckRoles has said.
absl::Status CheckWeights(const LayerSpec& spec, const RoleMap& by_role,
                          const std::vector<StoredWeight>& stored) {
  for (const StoredWeight& weight : stored) {
    const RoleTensor& tensor = *by_role.at(weight.weight);
    Shape shape = {weight.rows, weight.depth};
    if (spec.orientation == Orientation::kInOut) std::swap(shape[0], shape[1]);
    absl::Status status = CheckShape(tensor, shape);
    const TensorView empty{tensor.view.dtype, {0}, nullptr};
    if (status.ok()) status = ConvertToFloat(empty, tensor.name, nullptr);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Leaves `out` empty where the layer has no such bias (or other vector).
absl::Status ReadBiasInto(const RoleMap& by_role, TensorRole role, int64_t width,
                          std::vector<float>* out) {
  const auto found = by_role.find(role);
  if (found == by_role.end()) return absl::OkStatus();
  absl::StatusOr<std::vector<float>> bias = ReadTensor(*found->second, {width});
  if (!bias.ok()) return bias.status();
  *out = *std::move(bias);
  return absl::OkStatus();
}

// A fused weight's bias, dealt out to q, k and v.
absl::Status ReadFusedBias(const RoleMap& by_role, const StoredWeight& weight, LayerVectors* out) {
  std::vector<float> fused;
  absl::Status status = ReadBiasInto(by_role, weight.bias, weight.rows, &fused);
  if (!status.ok() || fused.empty()) return status;
  auto begin = fused.begin();
  for (const WeightStretch& stretch : weight.stretches) {
    std::vector<float>& bias = stretch.matrix == WeightMatrix::kQ   ? out->bq
                               : stretch.matrix == WeightMatrix::kK ? out->bk
                                                                    : out->bv;
    bias.insert(bias.end(), begin, begin + stretch.rows);
    begin += stretch.rows;
  }
  return absl::OkStatus();
}

// A fused weight may have its bias in one, or q, k and v theirs apart.
absl::Status ReadBiases(const LayerSpec& spec, const RoleMap& by_role,
                        const std::vector<StoredWeight>& stored, LayerVectors* out) {
  absl::Status status;
  for (const StoredWeight& weight : stored) {
    if (weight.stretches.size() > 1) status.Update(ReadFusedBias(by_role, weight, out));
  }
  status.Update(ReadBiasInto(by_role, TensorRole::kQBias, spec.q_width(), &out->bq));
  status.Update(ReadBiasInto(by_role, TensorRole::kKBias, spec.k_width(), &out->bk));
  status.Update(ReadBiasInto(by_role, TensorRole::kVBias, spec.v_width(), &out->bv));
  status.Update(ReadBiasInto(by_role, TensorRole::kOBias, spec.d_out, &out->bo));
  status.Update(ReadBiasInto(by_role, TensorRole::kQStatisticBias, spec.q_statistic_rows(),
                             &out->bq_statistic));
  status.Update(ReadBiasInto(by_role, TensorRole::kKStatisticBias, spec.k_statistic_rows(),
                             &out->bk_statistic));
  return status;
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

absl::Status ReadQkNorm(const LayerSpec& spec, const Given& given, LayerVectors* out) {
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

// The norm before the layer, of which the spec alone says nothing about its weights.
absl::Status ReadPreNorm(const LayerSpec& spec, const RoleMap& by_role, LayerVectors* out) {
  absl::Status status;
  if (!spec.pre_norm.has_value()) {
    for (const TensorRole role : {TensorRole::kPreNorm, TensorRole::kPreNormBias}) {
      status.Update(Forbid(by_role, role, "needs a spec with pre_norm"));
    }
    return status;
  }
  if (spec.pre_norm->kind != NormKind::kLayerNorm) {
    status = Forbid(by_role, TensorRole::kPreNormBias, "needs the kind LAYER_NORM");
  }
  status.Update(ReadBiasInto(by_role, TensorRole::kPreNorm, spec.d_model, &out->pre_norm));
  status.Update(ReadBiasInto(by_role, TensorRole::kPreNormBias, spec.d_model, &out->pre_norm_bias));
  return status;
}

// Sinks, the table of position biases and norms, each exactly where the spec has it.
absl::Status ReadExtras(const LayerSpec& spec, const Given& given, LayerVectors* out) {
  absl::Status status = ReadPreNorm(spec, given.whole, out);
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
    if (bias && spec.qk_norm && spec.qk_norm->kind != NormKind::kLayerNorm) {
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

// A matrix of LayerMatrices and its shape.
struct MatrixPlace {
  std::vector<float> LayerMatrices::* values;
  int64_t rows, depth;
};

// In WeightMatrix's order.
std::array<MatrixPlace, 6> MatrixPlaces(const LayerSpec& spec) {
  using M = LayerMatrices;
  return {{{&M::wq, spec.q_width(), spec.d_model},
           {&M::wk, spec.k_width(), spec.d_memory},
           {&M::wv, spec.v_width(), spec.d_memory},
           {&M::wo, spec.d_out, spec.z_width()},
           {&M::wq_statistic, spec.q_statistic_rows(), spec.d_model},
           {&M::wk_statistic, spec.k_statistic_rows(), spec.d_memory}}};
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
    case TensorRole::kPreNorm:
      return "PRE_NORM";
    case TensorRole::kPreNormBias:
      return "PRE_NORM_BIAS";
    case TensorRole::kQStatistic:
      return "Q_STATISTIC";
    case TensorRole::kKStatistic:
      return "K_STATISTIC";
    case TensorRole::kQStatisticBias:
      return "Q_STATISTIC_BIAS";
    case TensorRole::kKStatisticBias:
      return "K_STATISTIC_BIAS";
  }
  return "UNKNOWN";
}

absl::StatusOr<LayerVectors> UnpackVectors(const LayerSpec& spec,
                                           const std::vector<RoleTensor>& tensors) {
  const absl::StatusOr<Given> given = ByRole(tensors);
  if (!given.ok()) return given.status();
  const RoleMap& by_role = given->whole;
  absl::Status status = CheckRoles(spec, by_role);
  status.Update(CheckNormRoles(spec, *given));
  status.Update(CheckStatisticRoles(spec, by_role));
  if (!status.ok()) return status;

  const std::vector<StoredWeight> stored =
      ListStoredWeights(spec, by_role.contains(TensorRole::kKvWeight));
  LayerVectors vectors;
  status = CheckWeights(spec, by_role, stored);
  if (status.ok()) status = ReadBiases(spec, by_role, stored, &vectors);
  if (status.ok()) status = ReadExtras(spec, *given, &vectors);
  if (!status.ok()) return status;
  return vectors;
}

absl::StatusOr<LayerMatrices> UnpackWeights(const LayerSpec& spec,
                                            const std::vector<RoleTensor>& tensors) {
  absl::StatusOr<LayerVectors> vectors = UnpackVectors(spec, tensors);
  if (!vectors.ok()) return vectors.status();
  LayerMatrices matrices{*std::move(vectors)};
  const std::array<MatrixPlace, 6> places = MatrixPlaces(spec);
  for (const MatrixPlace& place : places) {
    (matrices.*place.values).resize(static_cast<size_t>(place.rows * place.depth));
  }
  const absl::Status status = UnpackRows(
      spec, tensors, [&](WeightMatrix matrix, int64_t first, int64_t count, const float* rows) {
        const MatrixPlace& place = places[static_cast<size_t>(matrix)];
        std::copy_n(rows, count * place.depth,
                    (matrices.*place.values).begin() + first * place.depth);
      });
  if (!status.ok()) return status;
  return matrices;
}

}  // namespace headwise
