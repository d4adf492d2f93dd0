// SPDX-License-Identifier: Apache-2.0
#include "core/layer/weights.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

using RoleMap = std::map<TensorRole, const RoleTensor*>;

absl::Status Invalid(TensorRole role, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensors: ", TensorRoleName(role), " ", rule, "; was ", was));
}

absl::StatusOr<RoleMap> ByRole(const std::vector<RoleTensor>& tensors) {
  RoleMap by_role;
  for (const RoleTensor& tensor : tensors) {
    const auto [place, inserted] = by_role.emplace(tensor.role, &tensor);
    if (inserted) continue;
    return Invalid(tensor.role, "must be given once",
                   absl::StrCat("\"", place->second->name, "\" and \"", tensor.name, "\""));
  }
  return by_role;
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

// Which roles go together: q, k, v apart or fused, their biases apart or fused.
absl::Status CheckRoles(const LayerSpec& spec, const RoleMap& by_role) {
  absl::Status status = Require(by_role, TensorRole::kOWeight);
  const bool fused = spec.fused_layout != FusedLayout::kSeparate;
  for (const TensorRole role : {TensorRole::kQWeight, TensorRole::kKWeight, TensorRole::kVWeight}) {
    status.Update(fused ? Forbid(by_role, role, "does not belong to a fused layout")
                        : Require(by_role, role));
  }
  if (fused) {
    status.Update(Require(by_role, TensorRole::kQkvWeight));
  } else {
    status.Update(Forbid(by_role, TensorRole::kQkvWeight, "needs a fused layout"));
    status.Update(Forbid(by_role, TensorRole::kQkvBias, "needs a fused layout"));
  }
  if (!by_role.contains(TensorRole::kQkvBias)) return status;
  for (const TensorRole role : {TensorRole::kQBias, TensorRole::kKBias, TensorRole::kVBias}) {
    status.Update(Forbid(by_role, role, "does not go with QKV_BIAS"));
  }
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

absl::Status ReadSeparate(const LayerSpec& spec, const RoleMap& by_role, LayerMatrices* out) {
  absl::Status status =
      ReadWeightInto(spec, by_role, TensorRole::kQWeight, spec.q_width(), spec.d_model, &out->wq);
  status.Update(
      ReadWeightInto(spec, by_role, TensorRole::kKWeight, spec.k_width(), spec.d_memory, &out->wk));
  status.Update(
      ReadWeightInto(spec, by_role, TensorRole::kVWeight, spec.v_width(), spec.d_memory, &out->wv));
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
  }
  return "UNKNOWN";
}

absl::StatusOr<LayerMatrices> UnpackWeights(const LayerSpec& spec,
                                            const std::vector<RoleTensor>& tensors) {
  absl::StatusOr<RoleMap> by_role = ByRole(tensors);
  if (!by_role.ok()) return by_role.status();
  absl::Status status = CheckRoles(spec, *by_role);
  if (!status.ok()) return status;

  LayerMatrices matrices;
  status = spec.fused_layout == FusedLayout::kSeparate ? ReadSeparate(spec, *by_role, &matrices)
                                                       : ReadFused(spec, *by_role, &matrices);
  status.Update(ReadBiasInto(*by_role, TensorRole::kQBias, spec.q_width(), &matrices.bq));
  status.Update(ReadBiasInto(*by_role, TensorRole::kKBias, spec.k_width(), &matrices.bk));
  status.Update(ReadBiasInto(*by_role, TensorRole::kVBias, spec.v_width(), &matrices.bv));
  status.Update(ReadWeightInto(spec, *by_role, TensorRole::kOWeight, spec.d_out, spec.z_width(),
                               &matrices.wo));
  status.Update(ReadBiasInto(*by_role, TensorRole::kOBias, spec.d_out, &matrices.bo));
  if (!status.ok()) return status;
  return matrices;
}

}  // namespace headwise
