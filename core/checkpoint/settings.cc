// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/settings.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

using nlohmann::json;

constexpr absl::string_view kFullAttention = "full_attention";
constexpr absl::string_view kSlidingAttention = "sliding_attention";

absl::Status Unsupported(const ConfigObject& config, absl::string_view key, const json& value) {
  return config.Refuse(absl::StatusCode::kUnimplemented, key, "not carried out by this release",
                       value);
}

absl::Status CheckFixed(const Family& family, const ConfigObject& config) {
  for (const FixedSetting& setting : family.fixed) {
    const json* const value = config.Find(setting.key);
    if (value == nullptr || value->is_null() || *value == json::parse(setting.json)) continue;
    return Unsupported(config, setting.key, *value);
  }
  return absl::OkStatus();
}

// layer_types[layer]; nullopt where config.json has no such list.
absl::StatusOr<std::optional<std::string>> FindLayerType(const ConfigObject& config,
                                                         int64_t layer) {
  const json* const types = config.Find("layer_types");
  if (types == nullptr || types->is_null()) return std::nullopt;
  const size_t index = static_cast<size_t>(layer);
  if (!types->is_array() || types->size() <= index || !(*types)[index].is_string()) {
    return config.Refuse(absl::StatusCode::kDataLoss, "layer_types",
                         absl::StrCat("must be a list with a text for layer ", layer), *types);
  }
  return (*types)[index].get<std::string>();
}

absl::Status ReadSizes(const Family& family, const ConfigObject& config, LayerSpec* spec) {
  const SizeKeys& keys = *family.keys;
  const absl::StatusOr<int64_t> d_model = config.PositiveInt(keys.d_model, family.defaults.d_model);
  if (!d_model.ok()) return d_model.status();
  const absl::StatusOr<int64_t> heads = config.PositiveInt(keys.heads, family.defaults.heads);
  if (!heads.ok()) return heads.status();
  const absl::StatusOr<std::optional<int64_t>> kv_heads =
      config.PositiveIntOrNull(keys.kv_heads, family.defaults.kv_heads);
  if (!kv_heads.ok()) return kv_heads.status();
  const absl::StatusOr<std::optional<int64_t>> head_dim =
      config.PositiveIntOrNull(keys.head_dim, std::nullopt);
  if (!head_dim.ok()) return head_dim.status();
  spec->d_model = *d_model;
  spec->heads = *heads;
  spec->kv_heads = kv_heads->value_or(*heads);
  if (head_dim->has_value()) spec->dk = {**head_dim};
  return absl::OkStatus();
}

absl::Status ReadMask(const Family& family, const ConfigObject& config, int64_t layer,
                      LayerSpec* spec) {
  const absl::StatusOr<bool> is_decoder = config.Bool("is_decoder", false);
  if (family.mask == MaskRule::kCausalIfDecoder && !is_decoder.ok()) return is_decoder.status();
  spec->mask.causal = family.mask == MaskRule::kCausal || *is_decoder;

  const absl::StatusOr<std::optional<std::string>> type = FindLayerType(config, layer);
  if (!type.ok()) return type.status();
  const std::string kind = type->value_or(std::string(kFullAttention));
  if (kind != kFullAttention && !(kind == kSlidingAttention && family.window)) {
    return Unsupported(config, absl::StrCat("layer_types[", layer, "]"), kind);
  }
  // Without the list every layer of a family with windows has one.
  if (!family.window || (type->has_value() && kind == kFullAttention)) return absl::OkStatus();
  const absl::string_view key[] = {family.window->key};
  const absl::StatusOr<std::optional<int64_t>> window =
      config.PositiveIntOrNull(key, family.window->absent);
  if (!window.ok()) return window.status();
  spec->mask.window = *window;
  return absl::OkStatus();
}

// rope_parameters of newer files, of this layer's type where they are kept by type; else
// rope_scaling, or nothing.
absl::StatusOr<std::optional<ConfigObject>> FindRopeObject(const ConfigObject& config,
                                                           int64_t layer) {
  const absl::StatusOr<std::optional<ConfigObject>> parameters = config.Object("rope_parameters");
  if (!parameters.ok()) return parameters.status();
  if (!parameters->has_value()) return config.Object("rope_scaling");
  const absl::StatusOr<std::optional<std::string>> type = FindLayerType(config, layer);
  if (!type.ok()) return type.status();
  if (type->has_value() && (*parameters)->Find(**type) != nullptr) {
    return (*parameters)->Object(**type);
  }
  for (const absl::string_view kind : {kFullAttention, kSlidingAttention}) {
    if (const json* const other = (*parameters)->Find(kind)) {
      return (*parameters)
          ->Refuse(absl::StatusCode::kDataLoss, kind,
                   "needs layer_types that say which layers it is for", *other);
    }
  }
  return *parameters;
}

absl::Status CheckRopeKind(const ConfigObject& rope) {
  const absl::string_view keys[] = {"rope_type", "type"};
  const absl::StatusOr<std::string> kind = rope.String(keys, "default");
  if (!kind.ok()) return kind.status();
  const json* const factor = rope.Find("factor");
  if (rope.Find("rope_type") == nullptr && rope.Find("type") == nullptr && factor != nullptr) {
    return rope.Refuse(absl::StatusCode::kDataLoss, "factor", "needs a rope_type beside it",
                       *factor);
  }
  if (*kind == "default") return absl::OkStatus();
  const bool newer = rope.Find("rope_type") != nullptr;
  return Unsupported(rope, newer ? "rope_type" : "type", *kind);
}

absl::Status ReadRope(const Family& family, const ConfigObject& config, int64_t layer,
                      LayerSpec* spec) {
  if (!family.rope) return absl::OkStatus();
  const absl::StatusOr<std::optional<ConfigObject>> found = FindRopeObject(config, layer);
  if (!found.ok()) return found.status();
  absl::StatusOr<double> base = config.PositiveNumber("rope_theta", family.rope_base_if_absent);
  absl::StatusOr<double> share = config.PositiveNumber("partial_rotary_factor", 1.0);
  if (found->has_value()) {
    const ConfigObject& rope = **found;
    if (absl::Status status = CheckRopeKind(rope); !status.ok()) return status;
    if (rope.Find("rope_theta") != nullptr) base = rope.PositiveNumber("rope_theta", 0);
    if (rope.Find("partial_rotary_factor") != nullptr) {
      share = rope.PositiveNumber("partial_rotary_factor", 1.0);
    }
  }
  if (!base.ok()) return base.status();
  if (!share.ok()) return share.status();
  if (*share > 1.0) {
    return config.Refuse(absl::StatusCode::kDataLoss, "partial_rotary_factor", "must be at most 1",
                         *share);
  }
  RopeSpec& rope = spec->rope.emplace();
  rope.layout = *family.rope;
  rope.base = *base;
  // The head's width is known where it is given or divides; where neither, ResolveSpec refuses.
  const int64_t width = spec->dk.empty() ? spec->d_model / spec->heads : spec->dk.front();
  rope.dims = static_cast<int64_t>(static_cast<double>(width) * *share);
  if (rope.dims == 0 && width > 0) {  // 0 would mean all of the head
    return config.Refuse(absl::StatusCode::kDataLoss, "partial_rotary_factor",
                         absl::StrCat("must leave a feature of ", width), *share);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ReadLayerCount(const Family& family, const ConfigObject& config) {
  return config.PositiveInt(family.keys->layers, family.defaults.layers);
}

absl::StatusOr<bool> ReadHasBiases(const Family& family, const ConfigObject& config) {
  if (family.bias_key.empty()) return family.biases_if_no_key;
  return config.Bool(family.bias_key, family.biases_if_no_key);
}

absl::StatusOr<LayerSpec> ReadLayerSpec(const Family& family, const ConfigObject& config,
                                        int64_t layer) {
  LayerSpec spec;
  spec.orientation = family.block->orientation;
  spec.fused_layout = family.block->fused_layout;
  absl::Status status = CheckFixed(family, config);
  if (status.ok()) status = ReadSizes(family, config, &spec);
  if (status.ok()) status = ReadMask(family, config, layer, &spec);
  if (status.ok()) status = ReadRope(family, config, layer, &spec);
  if (!status.ok()) return status;
  return ResolveSpec(std::move(spec));
}

}  // namespace headwise
