// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/checkpoint/block.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/family.h"
#include "core/checkpoint/layer_id.h"
#include "core/checkpoint/settings.h"
#include "core/format/file.h"

namespace headwise {
namespace {

using nlohmann::json;

// Layers listed of a model whose layers share blocks.
constexpr int64_t kMaxListed = 10000;

absl::StatusOr<std::vector<const Family*>> PickFamily(const ConfigObject& config) {
  const absl::StatusOr<std::string> model_type = config.String(kModelTypeKey, "");
  if (!model_type.ok()) return model_type.status();
  if (model_type->empty()) {
    return absl::DataLossError("config.json: model_type: must be given; was absent");
  }
  std::vector<const Family*> family = FindFamilies(*model_type);
  if (!family.empty()) return family;
  return absl::UnimplementedError(absl::StrCat(
      "config.json: model_type: not a supported family; was \"", Printable(*model_type), "\""));
}

// The row that `id` means. A family whose only row has a part needs none named.
absl::StatusOr<const Family*> PickPart(const std::vector<const Family*>& rows, const LayerId& id) {
  for (const Family* row : rows) {
    if (row->part == id.part || (id.part.empty() && rows.size() == 1)) return row;
  }
  const absl::string_view model_type = rows.front()->model_type;
  std::vector<absl::string_view> parts;
  for (const Family* row : rows) {
    if (!row->part.empty()) parts.push_back(row->part);
  }
  const std::string was = absl::StrCat(id.part, id.part.empty() ? "" : ".", id.index);
  if (parts.empty()) {
    return absl::NotFoundError(absl::StrCat("layer: the family \"", model_type,
                                            "\" has no parts, only numbers; was \"", was, "\""));
  }
  if (id.part == "vision" && rows.front()->section == "text_config") {
    return absl::UnimplementedError(absl::StrCat("layer: the vision part of \"", model_type,
                                                 "\" is not carried out by this release; was \"",
                                                 was, "\""));
  }
  return absl::NotFoundError(absl::StrCat("layer: must name a part of the family \"", model_type,
                                          "\", ", absl::StrJoin(parts, ", "), "; was \"", was,
                                          "\""));
}

// Plans the layers of one part of a checkpoint.
class Planner {
 public:
  Planner(const Family& family, const ConfigObject& config, const StoredIndex& stored)
      : family_(family), config_(config), stored_(stored), block_(family.block) {
    blocks_ = FindBlocks(*block_, stored);
    if (!blocks_.empty() || family.other_block == nullptr) return;
    block_ = family.other_block;
    blocks_ = FindBlocks(*block_, stored);
  }

  // Adds those that can be planned; keeps the first error.
  void List(std::vector<std::string>* layers, absl::Status* first_error) const {
    for (const int64_t layer : Candidates()) {
      const absl::StatusOr<LayerPlan> plan = Plan(layer);
      if (plan.ok()) layers->push_back(plan->source.layer);
      first_error->Update(plan.status());
    }
  }

  absl::StatusOr<LayerPlan> Plan(int64_t layer) const {
    absl::StatusOr<BlockTensors> tensors = ReadTensors();
    if (!tensors.ok()) return tensors.status();
    if (absl::Status status = CheckIndex(*tensors, layer); !status.ok()) return status;
    const absl::StatusOr<int64_t> index = ReadBlockIndex(family_, config_, layer);
    if (!index.ok()) return index.status();
    const absl::StatusOr<std::string> prefix = FindPrefix(*tensors, layer, *index);
    if (!prefix.ok()) return prefix.status();

    const std::string block = absl::StrCat(*prefix, BlockName(*block_, *index));
    LayerPlan plan;
    plan.source = Source(layer, block);
    absl::StatusOr<LayerSpec> spec =
        ReadLayerSpec(family_, config_, layer, StoredZWidth(*prefix, *index));
    if (!spec.ok()) return spec.status();
    plan.spec = *std::move(spec);
    if (family_.norm && family_.norm->tensor_per_head) {
      tensors->heads = plan.spec.heads;
      tensors->kv_heads = plan.spec.kv_heads;
    }
    plan.tensors = TensorNames(*tensors, *prefix, *index);
    absl::Status status = AddPreNorm(absl::StrCat(*prefix, block_->head, *index), &plan);
    status.Update(CheckTensors(plan));
    status.Update(CheckStrays(*tensors, stored_, block, plan.tensors));
    if (!status.ok()) return status;
    return plan;
  }

 private:
  absl::StatusOr<BlockTensors> ReadTensors() const {
    BlockTensors tensors;
    tensors.family = &family_;
    tensors.block = block_;
    const absl::StatusOr<bool> biases = ReadSwitch(family_.biases, config_);
    if (!biases.ok()) return biases.status();
    tensors.biases = *biases;
    if (!family_.norm) return tensors;
    const absl::StatusOr<bool> norms = ReadSwitch(family_.norm->used, config_);
    if (!norms.ok()) return norms.status();
    tensors.norms = *norms;
    return tensors;
  }

  // The layers that have a block in the checkpoint.
  std::vector<int64_t> Candidates() const {
    std::vector<int64_t> layers;
    if (family_.groups_key.empty()) {
      for (const auto& [index, prefixes] : blocks_) layers.push_back(index);
      return layers;
    }
    const absl::StatusOr<int64_t> count = ReadLayerCount(family_, config_);
    for (int64_t layer = 0; layer < std::min(count.value_or(1), kMaxListed); ++layer) {
      const absl::StatusOr<int64_t> index = ReadBlockIndex(family_, config_, layer);
      if (!index.ok() || blocks_.contains(*index)) layers.push_back(layer);
    }
    if (blocks_.empty()) layers.clear();
    return layers;
  }

  std::string NamesLookedFor(const BlockTensors& tensors, int64_t index) const {
    return absl::StrJoin(TensorNames(tensors, "[PREFIX.]", index), ", ",
                         [](std::string* out, const TensorUse& use) { out->append(use.name); });
  }

  absl::Status CheckIndex(const BlockTensors& tensors, int64_t layer) const {
    const absl::StatusOr<int64_t> layers = ReadLayerCount(family_, config_);
    if (!layers.ok()) return layers.status();
    if (layer < *layers) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("layer: must be below ", *layers, " (",
                                            family_.keys->layers.front(), "); was ", layer,
                                            "; looked for ", NamesLookedFor(tensors, layer)));
  }

  absl::StatusOr<std::string> FindPrefix(const BlockTensors& tensors, int64_t layer,
                                         int64_t index) const {
    const auto found = blocks_.find(index);
    if (found == blocks_.end()) {
      return absl::NotFoundError(absl::StrCat("layer: must be in the checkpoint; was ",
                                              LayerName(layer), "; looked for ",
                                              NamesLookedFor(tensors, index)));
    }
    const std::set<std::string>& prefixes = found->second;
    if (prefixes.size() == 1) return *prefixes.begin();
    return absl::DataLossError(absl::StrCat("tensor \"", BlockName(*block_, index),
                                            "\": must be there under one prefix; was under \"",
                                            Printable(absl::StrJoin(prefixes, "\", \"")), "\""));
  }

  // Features that the block's output projection reads, as stored.
  std::optional<int64_t> StoredZWidth(const std::string& prefix, int64_t index) const {
    for (const RoleName& role : block_->tensors) {
      if (role.role != TensorRole::kOWeight) continue;
      const auto found =
          stored_.find(absl::StrCat(prefix, BlockName(*block_, index), ".", role.name));
      if (found == stored_.end() || found->second->shape.size() != 2) return std::nullopt;
      return found->second->shape[block_->orientation == Orientation::kInOut ? 0 : 1];
    }
    return std::nullopt;
  }

  std::string LayerName(int64_t layer) const {
    return absl::StrCat(family_.part, family_.part.empty() ? "" : ".", layer);
  }

  LayerSource Source(int64_t layer, const std::string& block) const {
    LayerSource source;
    source.layer = LayerName(layer);
    source.family = std::string(family_.model_type);
    source.prefix = block;
    source.x_enters = std::string(block_->x_enters);
    source.y_leaves = std::string(block_->y_leaves);
    return source;
  }

  absl::Status AddPreNorm(const std::string& block_start, LayerPlan* plan) const {
    if (!family_.pre_norm.has_value()) return absl::OkStatus();
    const std::vector<TensorUse> uses = PreNormTensors(*family_.pre_norm, block_start, stored_);
    if (uses.empty()) return absl::OkStatus();
    const absl::StatusOr<std::optional<PreNormSpec>> norm = ReadPreNorm(family_, config_);
    if (!norm.ok() || !norm->has_value()) return norm.status();
    plan->spec.pre_norm = *norm;
    plan->tensors.insert(plan->tensors.end(), uses.begin(), uses.end());
    return absl::OkStatus();
  }

  absl::Status CheckTensors(const LayerPlan& plan) const {
    for (const TensorUse& use : plan.tensors) {
      const auto found = stored_.find(use.name);
      if (found == stored_.end()) {
        return absl::NotFoundError(
            absl::StrCat("tensor: must be in the checkpoint; was missing: ", Printable(use.name)));
      }
      absl::Status status = CheckTensor(plan.spec, use, *found->second);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const Family& family_;
  const ConfigObject& config_;
  const StoredIndex& stored_;
  const BlockLayout* block_;
  std::map<int64_t, std::set<std::string>> blocks_;
};

// The object of config.json that a part's settings are in; an empty one where it is absent.
absl::StatusOr<ConfigObject> FindSection(const Family& family, const ConfigObject& config) {
  static const json* const kEmpty = new json(json::object());
  if (family.section.empty()) return config;
  const absl::StatusOr<std::optional<ConfigObject>> section = config.Object(family.section);
  if (!section.ok()) return section.status();
  return section->value_or(ConfigObject(*kEmpty, absl::StrCat(family.section, ".")));
}

absl::Status NothingLooksLike(const std::vector<const Family*>& rows) {
  const BlockLayout& block = *rows.front()->block;
  return absl::NotFoundError(
      absl::StrCat("layer: must be in the checkpoint; was none: no tensor looks like [PREFIX.]",
                   block.head, "I", block.tail, ".", block.tensors.front().name));
}

}  // namespace

absl::StatusOr<LayerPlan> PlanLayer(absl::string_view config_json, absl::string_view layer,
                                    const std::vector<StoredTensorInfo>& stored) {
  const absl::StatusOr<LayerId> id = ParseLayerId(layer);
  if (!id.ok()) return id.status();
  const absl::StatusOr<json> parsed = ParseConfigJson(config_json);
  if (!parsed.ok()) return parsed.status();
  const ConfigObject config(*parsed, "");
  const absl::StatusOr<std::vector<const Family*>> rows = PickFamily(config);
  if (!rows.ok()) return rows.status();
  const absl::StatusOr<const Family*> family = PickPart(*rows, *id);
  if (!family.ok()) return family.status();
  const absl::StatusOr<ConfigObject> section = FindSection(**family, config);
  if (!section.ok()) return section.status();
  const StoredIndex index = IndexByName(stored);
  return Planner(**family, *section, index).Plan(id->index);
}

absl::StatusOr<std::vector<std::string>> ListLayerIds(absl::string_view config_json,
                                                      const std::vector<StoredTensorInfo>& stored) {
  const absl::StatusOr<json> parsed = ParseConfigJson(config_json);
  if (!parsed.ok()) return parsed.status();
  const ConfigObject config(*parsed, "");
  const absl::StatusOr<std::vector<const Family*>> rows = PickFamily(config);
  if (!rows.ok()) return rows.status();
  const StoredIndex index = IndexByName(stored);
  std::vector<std::string> layers;
  absl::Status first_error;
  for (const Family* family : *rows) {
    const absl::StatusOr<ConfigObject> section = FindSection(*family, config);
    first_error.Update(section.status());
    if (section.ok()) Planner(*family, *section, index).List(&layers, &first_error);
  }
  if (!layers.empty()) return layers;
  if (!first_error.ok()) return first_error;
  return NothingLooksLike(*rows);
}

}  // namespace headwise
