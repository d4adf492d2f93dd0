// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/block.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/checkpoint/layer_id.h"
#include "core/format/file.h"

namespace headwise {
namespace {

// The part of `name` before the block's, with the block's index: of
// "bert.encoder.layer.3.attention. self.query.weight" "bert." and 3.
struct BlockPlace {
  std::string prefix;
  int64_t index = 0;
};

// Any of the layer's tensors gives the block away.
std::optional<BlockPlace> FindBlock(const BlockLayout& block, absl::string_view name) {
  absl::string_view rest;
  for (const absl::Span<const RoleName> tensors : {block.tensors, block.biases}) {
    for (const RoleName& tensor : tensors) {
      const std::string end = absl::StrCat(block.tail, ".", tensor.name);
      if (absl::EndsWith(name, end)) rest = name.substr(0, name.size() - end.size());
    }
  }
  const size_t digits = rest.find_last_not_of("0123456789") + 1;
  const std::optional<int64_t> index = ParseLayerIndex(rest.substr(digits));
  absl::string_view prefix = rest.substr(0, digits);
  if (!index || !absl::ConsumeSuffix(&prefix, block.head)) return std::nullopt;
  if (!prefix.empty() && !absl::EndsWith(prefix, ".")) return std::nullopt;
  return BlockPlace{std::string(prefix), *index};
}

bool OfQ(TensorRole role) { return role == TensorRole::kQNorm || role == TensorRole::kQNormBias; }

Shape NormShape(const LayerSpec& spec, const TensorUse& use) {
  const int64_t dk = spec.dk.front();
  const int64_t heads = OfQ(use.role) ? spec.heads : spec.kv_heads;
  if (use.head >= 0 || spec.qk_norm->span == QkNormSpan::kHead) return {dk};
  if (spec.qk_norm->span == QkNormSpan::kHeads) return {heads, dk};
  return {heads * dk};
}

// Shape of a role's tensor as stored; families have heads of one width.
Shape ExpectedShape(const LayerSpec& spec, const TensorUse& use) {
  const int64_t q = spec.q_width(), k = spec.k_width(), v = spec.v_width();
  const auto matrix = [&spec](int64_t out, int64_t in) {
    return spec.orientation == Orientation::kInOut ? Shape{in, out} : Shape{out, in};
  };
  switch (use.role) {
    case TensorRole::kQWeight:
      return matrix(q, spec.d_model);
    case TensorRole::kKWeight:
      return matrix(k, spec.d_memory);
    case TensorRole::kVWeight:
      return matrix(v, spec.d_memory);
    case TensorRole::kQkvWeight:
      return matrix(q + k + v, spec.d_model);
    case TensorRole::kKvWeight:
      return matrix(k + v, spec.d_memory);
    case TensorRole::kOWeight:
      return matrix(spec.d_out, spec.z_width());
    case TensorRole::kQBias:
      return {q};
    case TensorRole::kKBias:
      return {k};
    case TensorRole::kVBias:
      return {v};
    case TensorRole::kQkvBias:
      return {q + k + v};
    case TensorRole::kKvBias:
      return {k + v};
    case TensorRole::kOBias:
      return {spec.d_out};
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
    case TensorRole::kQNormBias:
    case TensorRole::kKNormBias:
      return NormShape(spec, use);
    case TensorRole::kSinks:
      return {spec.heads};
    case TensorRole::kPositionBias:
      return {spec.position_bias->buckets, spec.heads};
    case TensorRole::kPreNorm:
    case TensorRole::kPreNormBias:
      return {spec.d_model};
    case TensorRole::kQStatistic:  // no checkpoint of a family holds a pruned layer
    case TensorRole::kKStatistic:
    case TensorRole::kQStatisticBias:
    case TensorRole::kKStatisticBias:
      break;
  }
  return {};
}

}  // namespace

StoredIndex IndexByName(const std::vector<StoredTensorInfo>& stored) {
  StoredIndex index;
  for (const StoredTensorInfo& tensor : stored) index.emplace(tensor.name, &tensor);
  return index;
}

std::string BlockName(const BlockLayout& block, int64_t index) {
  return absl::StrCat(block.head, index, block.tail);
}

std::map<int64_t, std::set<std::string>> FindBlocks(const BlockLayout& block,
                                                    const StoredIndex& stored) {
  std::map<int64_t, std::set<std::string>> blocks;
  for (const auto& [name, tensor] : stored) {
    std::optional<BlockPlace> place = FindBlock(block, name);
    if (place) blocks[place->index].insert(std::move(place->prefix));
  }
  return blocks;
}

std::vector<TensorUse> TensorNames(const BlockTensors& tensors, absl::string_view prefix,
                                   int64_t index) {
  const BlockLayout& block = *tensors.block;
  const std::string start = absl::StrCat(prefix, BlockName(block, index), ".");
  std::vector<TensorUse> uses;
  const auto add = [&uses, &start](absl::Span<const RoleName> roles) {
    for (const RoleName& role : roles) uses.push_back({role.role, absl::StrCat(start, role.name)});
  };
  add(block.tensors);
  if (tensors.biases) add(block.biases);
  if (tensors.norms && tensors.heads == 0) add(block.norms);
  if (tensors.norms && tensors.heads > 0) {
    for (const RoleName& role : block.norms) {
      const int64_t heads = OfQ(role.role) ? tensors.heads : tensors.kv_heads;
      for (int64_t head = 0; head < heads; ++head) {
        const std::string name = absl::StrReplaceAll(role.name, {{"{}", absl::StrCat(head)}});
        uses.push_back({role.role, absl::StrCat(start, name), head});
      }
    }
  }
  for (const RoleName& role : block.shared) {
    uses.push_back({role.role, absl::StrCat(prefix, role.name)});
  }
  return uses;
}

std::vector<TensorUse> PreNormTensors(const PreNormRule& rule, absl::string_view block_start,
                                      const StoredIndex& stored) {
  for (const absl::string_view norm : {rule.name, rule.other_name}) {
    const std::string start = absl::StrCat(block_start, ".", norm);
    std::vector<TensorUse> uses = {{TensorRole::kPreNorm, absl::StrCat(start, ".weight")}};
    const std::string bias = absl::StrCat(start, ".bias");
    if (stored.contains(bias)) uses.push_back({TensorRole::kPreNormBias, bias});
    const bool readable = std::all_of(uses.begin(), uses.end(), [&](const TensorUse& use) {
      const auto found = stored.find(use.name);
      return found != stored.end() && found->second->problem.empty();
    });
    if (readable) return uses;
  }
  return {};
}

absl::Status CheckTensor(const LayerSpec& spec, const TensorUse& use,
                         const StoredTensorInfo& tensor) {
  if (!tensor.problem.empty()) return absl::DataLossError(tensor.problem);
  const std::string start = absl::StrCat("tensor \"", Printable(tensor.name), "\": ");
  const std::optional<DType> dtype = DTypeFromName(tensor.dtype);
  if (!dtype || !IsFloat(*dtype)) {
    return absl::UnimplementedError(
        absl::StrCat(start, "dtype must be F32, BF16, F16 or F64; was ", Printable(tensor.dtype)));
  }
  const Shape expected = ExpectedShape(spec, use);
  if (tensor.shape == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(start, "shape must be ", ShapeToString(expected),
                                          " by config.json (width ", spec.d_model, ", heads ",
                                          spec.heads, ", kv heads ", spec.kv_heads, ", dk ",
                                          spec.dk.front(), "); was ", ShapeToString(tensor.shape)));
}

absl::Status CheckStrays(const BlockTensors& tensors, const StoredIndex& stored,
                         absl::string_view block_name, const std::vector<TensorUse>& used) {
  const std::string start = absl::StrCat(block_name, ".");
  std::set<std::string> accounted, optional;
  for (const TensorUse& use : used) accounted.insert(use.name);
  for (const absl::string_view name : tensors.block->ignored) {
    accounted.insert(absl::StrCat(start, name));
  }
  for (const absl::Span<const RoleName> roles : {tensors.block->biases, tensors.block->norms}) {
    for (const RoleName& role : roles) optional.insert(absl::StrCat(start, role.name));
  }
  for (auto it = stored.lower_bound(start);
       it != stored.end() && absl::StartsWith(it->first, start); ++it) {
    const std::string name(it->first);
    if (accounted.count(name) != 0) continue;
    const absl::string_view model_type = tensors.family->model_type;
    // A family with a switch for it says by config.json that it is not there.
    const bool norm = absl::StrContains(name, "norm") && !tensors.family->norm;
    if (optional.count(name) != 0 && !norm) {
      return absl::DataLossError(absl::StrCat(
          "tensor \"", Printable(name), "\": must be absent, as config.json says the family \"",
          model_type, "\" has no bias or norm here; was present"));
    }
    return absl::UnimplementedError(absl::StrCat("tensor \"", Printable(name),
                                                 "\": not known in the family \"", model_type,
                                                 "\"; was present"));
  }
  return absl::OkStatus();
}

}  // namespace headwise
