// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/family.h"
#include "core/checkpoint/layer_id.h"
#include "core/checkpoint/settings.h"
#include "core/format/file.h"

namespace headwise {
namespace {

using StoredIndex = std::map<absl::string_view, const StoredTensorInfo*>;

constexpr absl::string_view kModelType[] = {"model_type"};

StoredIndex IndexByName(const std::vector<StoredTensorInfo>& stored) {
  StoredIndex index;
  for (const StoredTensorInfo& tensor : stored) index.emplace(tensor.name, &tensor);
  return index;
}

absl::StatusOr<const Family*> PickFamily(const ConfigObject& config) {
  const absl::StatusOr<std::string> model_type = config.String(kModelType, "");
  if (!model_type.ok()) return model_type.status();
  if (model_type->empty()) {
    return absl::DataLossError("config.json: model_type: must be given; was absent");
  }
  const Family* const family = FindFamily(*model_type);
  if (family != nullptr) return family;
  return absl::UnimplementedError(absl::StrCat(
      "config.json: model_type: not a supported family; was \"", Printable(*model_type), "\""));
}

// "encoder.layer.3.attention".
std::string BlockName(const BlockLayout& block, int64_t layer) {
  return absl::StrCat(block.head, layer, block.tail);
}

// The part of `name` before the block's, with the layer's index: of
// "bert.encoder.layer.3.attention. self.query.weight" "bert." and 3. Any of the layer's tensors
// gives the block away.
struct BlockPlace {
  std::string prefix;
  int64_t layer = 0;
};

std::optional<BlockPlace> FindBlock(const BlockLayout& block, absl::string_view name) {
  absl::string_view rest;
  for (const absl::Span<const RoleName> tensors : {block.weights, block.biases}) {
    for (const RoleName& tensor : tensors) {
      const std::string end = absl::StrCat(block.tail, ".", tensor.name);
      if (absl::EndsWith(name, end)) rest = name.substr(0, name.size() - end.size());
    }
  }
  const size_t digits = rest.find_last_not_of("0123456789") + 1;
  const std::optional<int64_t> layer = ParseLayerIndex(rest.substr(digits));
  absl::string_view prefix = rest.substr(0, digits);
  if (!layer || !absl::ConsumeSuffix(&prefix, block.head)) return std::nullopt;
  if (!prefix.empty() && !absl::EndsWith(prefix, ".")) return std::nullopt;
  return BlockPlace{std::string(prefix), *layer};
}

// Prefixes of each layer that some name belongs to.
using Blocks = std::map<int64_t, std::set<std::string>>;

Blocks FindBlocks(const BlockLayout& block, const StoredIndex& stored) {
  Blocks blocks;
  for (const auto& [name, tensor] : stored) {
    std::optional<BlockPlace> place = FindBlock(block, name);
    if (place) blocks[place->layer].insert(std::move(place->prefix));
  }
  return blocks;
}

// The names that a layer must have, without a prefix.
std::string NamesLookedFor(const Family& family, bool biases, int64_t layer) {
  std::vector<std::string> names;
  const std::string block = BlockName(*family.block, layer);
  for (const RoleName& tensor : family.block->weights) {
    names.push_back(absl::StrCat("[PREFIX.]", block, ".", tensor.name));
  }
  for (const RoleName& tensor : family.block->biases) {
    if (biases) names.push_back(absl::StrCat("[PREFIX.]", block, ".", tensor.name));
  }
  return absl::StrJoin(names, ", ");
}

// The full name of the block in this checkpoint.
absl::StatusOr<std::string> FindBlockName(const Family& family, const Blocks& blocks, bool biases,
                                          int64_t layer) {
  const auto found = blocks.find(layer);
  if (found == blocks.end()) {
    return absl::NotFoundError(absl::StrCat("layer: must be in the checkpoint; was ", layer,
                                            "; looked for ",
                                            NamesLookedFor(family, biases, layer)));
  }
  const std::string block = BlockName(*family.block, layer);
  const std::set<std::string>& prefixes = found->second;
  if (prefixes.size() == 1) return absl::StrCat(*prefixes.begin(), block);
  return absl::DataLossError(absl::StrCat("tensor \"", block,
                                          "\": must be there under one prefix; was under \"",
                                          Printable(absl::StrJoin(prefixes, "\", \"")), "\""));
}

// Shape of a role's tensor as stored.
Shape ExpectedShape(const LayerSpec& spec, TensorRole role) {
  const int64_t q = spec.q_width(), k = spec.k_width(), v = spec.v_width();
  const auto matrix = [&spec](int64_t out, int64_t in) {
    return spec.orientation == Orientation::kInOut ? Shape{in, out} : Shape{out, in};
  };
  switch (role) {
    case TensorRole::kQWeight:
      return matrix(q, spec.d_model);
    case TensorRole::kKWeight:
      return matrix(k, spec.d_memory);
    case TensorRole::kVWeight:
      return matrix(v, spec.d_memory);
    case TensorRole::kQkvWeight:
      return matrix(q + k + v, spec.d_model);
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
    case TensorRole::kOBias:
      return {spec.d_out};
    case TensorRole::kQNorm:
    case TensorRole::kQNormBias:
      return {spec.qk_norm->span == QkNormSpan::kHead ? spec.dk.front() : q};
    case TensorRole::kKNorm:
    case TensorRole::kKNormBias:
      return {spec.qk_norm->span == QkNormSpan::kHead ? spec.dk.front() : k};
    case TensorRole::kSinks:
      return {spec.heads};
    case TensorRole::kPositionBias:
      return {spec.position_bias->buckets, spec.heads};
  }
  return {};
}

absl::Status CheckTensor(const LayerSpec& spec, TensorRole role, const StoredTensorInfo& tensor) {
  if (!tensor.problem.empty()) return absl::DataLossError(tensor.problem);
  const std::string start = absl::StrCat("tensor \"", Printable(tensor.name), "\": ");
  const std::optional<DType> dtype = DTypeFromName(tensor.dtype);
  if (!dtype || !IsFloat(*dtype)) {
    return absl::UnimplementedError(
        absl::StrCat(start, "dtype must be F32, BF16, F16 or F64; was ", Printable(tensor.dtype)));
  }
  const Shape expected = ExpectedShape(spec, role);
  if (tensor.shape == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(start, "shape must be ", ShapeToString(expected),
                                          " by config.json (width ", spec.d_model, ", heads ",
                                          spec.heads, ", kv heads ", spec.kv_heads, ", dk ",
                                          spec.dk.front(), "); was ", ShapeToString(tensor.shape)));
}

// Finds one tensor of the layer and adds it to the plan.
absl::Status UseTensor(const StoredIndex& stored, const std::string& block, const RoleName& role,
                       LayerPlan* plan) {
  const std::string name = absl::StrCat(block, ".", role.name);
  const auto found = stored.find(name);
  if (found == stored.end()) {
    return absl::NotFoundError(
        absl::StrCat("tensor: must be in the checkpoint; was missing: ", Printable(name)));
  }
  plan->tensors.push_back({role.role, name});
  return CheckTensor(plan->spec, role.role, *found->second);
}

// A tensor of the block that is neither used nor known to be no part of the layer would change what
// the layer computes.
absl::Status CheckStrays(const Family& family, const StoredIndex& stored, const std::string& block,
                         const LayerPlan& plan) {
  std::set<std::string> accounted;
  for (const TensorUse& use : plan.tensors) accounted.insert(use.name);
  for (const absl::string_view name : family.block->ignored) {
    accounted.insert(absl::StrCat(block, ".", name));
  }
  std::set<std::string> biases;
  for (const RoleName& bias : family.block->biases) {
    biases.insert(absl::StrCat(block, ".", bias.name));
  }
  const std::string start = block + ".";
  for (auto it = stored.lower_bound(start);
       it != stored.end() && absl::StartsWith(it->first, start); ++it) {
    const std::string name(it->first);
    if (accounted.count(name) != 0) continue;
    if (biases.count(name) != 0) {
      return absl::DataLossError(absl::StrCat(
          "tensor \"", Printable(name), "\": must be absent, as config.json says the family \"",
          family.model_type, "\" has no bias here; was present"));
    }
    return absl::UnimplementedError(absl::StrCat("tensor \"", Printable(name),
                                                 "\": not known in the family \"",
                                                 family.model_type, "\"; was present"));
  }
  return absl::OkStatus();
}

// None of the families so far has parts; a decoder of BERT's layout may have a second attention.
absl::Status CheckPart(const Family& family, const ConfigObject& config, const LayerId& id) {
  if (id.part.empty()) return absl::OkStatus();
  const absl::StatusOr<bool> cross = config.Bool("add_cross_attention", false);
  if (!cross.ok()) return cross.status();
  if (*cross && id.part == "cross") {
    return absl::UnimplementedError(absl::StrCat(
        "layer: the cross-attention of a \"", family.model_type,
        "\" decoder is not carried out by this release; was \"", id.part, ".", id.index, "\""));
  }
  return absl::NotFoundError(absl::StrCat("layer: the family \"", family.model_type,
                                          "\" has no parts, only numbers; was \"", id.part, ".",
                                          id.index, "\""));
}

// Plans the layers of one checkpoint.
class Planner {
 public:
  Planner(const Family& family, const ConfigObject& config, const StoredIndex& stored)
      : family_(family),
        config_(config),
        stored_(stored),
        blocks_(FindBlocks(*family.block, stored)) {}

  // Those that can be planned; the first one's error where there is none.
  absl::StatusOr<std::vector<std::string>> List() const {
    std::vector<std::string> layers;
    absl::Status first_error;
    for (const auto& [layer, prefixes] : blocks_) {
      const absl::StatusOr<LayerPlan> plan = Plan({"", layer});
      if (plan.ok()) layers.push_back(absl::StrCat(layer));
      first_error.Update(plan.status());
    }
    if (!layers.empty()) return layers;
    if (!first_error.ok()) return first_error;
    return absl::NotFoundError(absl::StrCat(
        "layer: must be in the checkpoint; was none: no tensor looks like [PREFIX.]",
        family_.block->head, "I", family_.block->tail, ".", family_.block->weights.front().name));
  }

  absl::StatusOr<LayerPlan> Plan(const LayerId& id) const {
    if (absl::Status status = CheckPart(family_, config_, id); !status.ok()) return status;
    const absl::StatusOr<bool> biases = ReadHasBiases(family_, config_);
    if (!biases.ok()) return biases.status();
    if (absl::Status status = CheckIndex(id.index, *biases); !status.ok()) return status;
    const absl::StatusOr<std::string> block = FindBlockName(family_, blocks_, *biases, id.index);
    if (!block.ok()) return block.status();
    LayerPlan plan;
    absl::StatusOr<LayerSpec> spec = ReadLayerSpec(family_, config_, id.index);
    if (!spec.ok()) return spec.status();
    plan.spec = *std::move(spec);
    plan.source = Source(id, *block);
    if (absl::Status status = UseTensors(*block, *biases, &plan); !status.ok()) return status;
    if (absl::Status status = CheckStrays(family_, stored_, *block, plan); !status.ok()) {
      return status;
    }
    return plan;
  }

 private:
  absl::Status CheckIndex(int64_t layer, bool biases) const {
    const absl::StatusOr<int64_t> layers = ReadLayerCount(family_, config_);
    if (!layers.ok()) return layers.status();
    if (layer < *layers) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("layer: must be below ", *layers, " (", family_.keys->layers.front(),
                     "); was ", layer, "; looked for ", NamesLookedFor(family_, biases, layer)));
  }

  LayerSource Source(const LayerId& id, const std::string& block) const {
    LayerSource source;
    source.layer = absl::StrCat(id.index);
    source.family = std::string(family_.model_type);
    source.prefix = block;
    source.x_enters = std::string(family_.block->x_enters);
    source.y_leaves = std::string(family_.block->y_leaves);
    return source;
  }

  absl::Status UseTensors(const std::string& block, bool biases, LayerPlan* plan) const {
    std::vector<RoleName> roles(family_.block->weights.begin(), family_.block->weights.end());
    if (biases) {
      roles.insert(roles.end(), family_.block->biases.begin(), family_.block->biases.end());
    }
    for (const RoleName& role : roles) {
      absl::Status status = UseTensor(stored_, block, role, plan);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const Family& family_;
  const ConfigObject& config_;
  const StoredIndex& stored_;
  const Blocks blocks_;
};

}  // namespace

absl::StatusOr<LayerPlan> PlanLayer(absl::string_view config_json, absl::string_view layer,
                                    const std::vector<StoredTensorInfo>& stored) {
  const absl::StatusOr<LayerId> id = ParseLayerId(layer);
  if (!id.ok()) return id.status();
  const absl::StatusOr<nlohmann::json> json = ParseConfigJson(config_json);
  if (!json.ok()) return json.status();
  const ConfigObject config(*json, "");
  const absl::StatusOr<const Family*> family = PickFamily(config);
  if (!family.ok()) return family.status();
  return Planner(**family, config, IndexByName(stored)).Plan(*id);
}

absl::StatusOr<std::vector<std::string>> ListLayerIds(absl::string_view config_json,
                                                      const std::vector<StoredTensorInfo>& stored) {
  const absl::StatusOr<nlohmann::json> json = ParseConfigJson(config_json);
  if (!json.ok()) return json.status();
  const ConfigObject config(*json, "");
  const absl::StatusOr<const Family*> family = PickFamily(config);
  if (!family.ok()) return family.status();
  return Planner(**family, config, IndexByName(stored)).List();
}

}  // namespace headwise
