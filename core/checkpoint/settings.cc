// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/settings.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/checkpoint/rope_settings.h"

namespace headwise {
namespace {

using nlohmann::json;

constexpr absl::string_view kFullAttention = "full_attention";
constexpr absl::string_view kSlidingAttention = "sliding_attention";

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

absl::Status ReadHeadWidth(const Family& family, const ConfigObject& config,
                           std::optional<int64_t> z_width, LayerSpec* spec) {
  const absl::StatusOr<std::optional<int64_t>> head_dim =
      config.PositiveIntOrNull(family.keys->head_dim, family.defaults.head_dim);
  if (!head_dim.ok()) return head_dim.status();
  if (!head_dim->has_value()) return absl::OkStatus();
  bool given = false;
  for (const absl::string_view key : family.keys->head_dim) {
    given = given || config.Find(key) != nullptr;
  }
  const bool only_divided_fits = z_width == spec->d_model && spec->d_model % spec->heads == 0;
  if (!given && only_divided_fits) return absl::OkStatus();  // D/H
  spec->dk = {**head_dim};
  return absl::OkStatus();
}

absl::Status ReadSizes(const Family& family, const ConfigObject& config,
                       std::optional<int64_t> z_width, LayerSpec* spec) {
  const SizeKeys& keys = *family.keys;
  const absl::StatusOr<int64_t> d_model = config.PositiveInt(keys.d_model, family.defaults.d_model);
  if (!d_model.ok()) return d_model.status();
  const absl::StatusOr<int64_t> heads = config.PositiveInt(keys.heads, family.defaults.heads);
  if (!heads.ok()) return heads.status();
  const absl::StatusOr<std::optional<int64_t>> kv_heads =
      config.PositiveIntOrNull(keys.kv_heads, family.defaults.kv_heads);
  if (!kv_heads.ok()) return kv_heads.status();
  spec->d_model = *d_model;
  spec->heads = *heads;
  spec->kv_heads = kv_heads->value_or(*heads);
  return ReadHeadWidth(family, config, z_width, spec);
}

// Whether the layer slides by the family's pattern.
absl::StatusOr<bool> SlidesByRule(const WindowRule& rule, const ConfigObject& config,
                                  int64_t layer) {
  constexpr absl::string_view kPattern[] = {"sliding_window_pattern", "_sliding_window_pattern"};
  constexpr absl::string_view kEvery[] = {"global_attn_every_n_layers"};
  absl::StatusOr<int64_t> period = 1;
  switch (rule.layers) {
    case WindowLayers::kAll:
      return true;
    case WindowLayers::kEven:
      return layer % 2 == 0;
    case WindowLayers::kFromLayer:
      period = config.NonNegativeInt("max_window_layers", rule.period);
      if (!period.ok()) return period.status();
      return layer >= *period;
    case WindowLayers::kAllButNth:
      period = config.PositiveInt(kPattern, rule.period);
      if (!period.ok()) return period.status();
      return (layer + 1) % *period != 0;
    case WindowLayers::kAllButEach:
      period = config.PositiveInt(kEvery, rule.period);
      if (!period.ok()) return period.status();
      return layer % *period != 0;
  }
  return false;
}

absl::Status ReadWindow(const WindowRule& rule, const ConfigObject& config, LayerSpec* spec) {
  if (rule.layers == WindowLayers::kFromLayer) {
    const absl::StatusOr<bool> used = config.Bool("use_sliding_window", false);
    if (!used.ok() || !*used) return used.status();
  }
  const absl::string_view key[] = {rule.key};
  const absl::StatusOr<std::optional<int64_t>> window = config.PositiveIntOrNull(key, rule.absent);
  if (!window.ok()) return window.status();
  spec->mask.window = *window;
  if (rule.halved && window->has_value()) spec->mask.window = **window / 2;
  return absl::OkStatus();
}

// The mask, and what kind of layer it is.
absl::Status ReadMask(const Family& family, const ConfigObject& config, int64_t layer,
                      RopeLayer* kind, LayerSpec* spec) {
  spec->mask.causal = family.mask == MaskRule::kCausal;
  if (family.mask == MaskRule::kCausalIfDecoder) {
    const absl::StatusOr<bool> is_decoder = config.Bool("is_decoder", false);
    if (!is_decoder.ok()) return is_decoder.status();
    spec->mask.causal = *is_decoder;
  }
  absl::StatusOr<std::optional<std::string>> type = FindLayerType(config, layer);
  if (!type.ok()) return type.status();
  kind->type = *type;
  if (type->has_value() && **type != kFullAttention &&
      !(**type == kSlidingAttention && family.window)) {
    return config.Unsupported(absl::StrCat("layer_types[", layer, "]"), **type);
  }
  if (!family.window) return absl::OkStatus();
  const absl::StatusOr<bool> slides = SlidesByRule(*family.window, config, layer);
  if (!slides.ok()) return slides.status();
  kind->sliding = type->has_value() ? **type == kSlidingAttention : *slides;
  if (!kind->type && family.window->layers != WindowLayers::kAll) {
    kind->type = std::string(kind->sliding ? kSlidingAttention : kFullAttention);
  }
  if (!kind->sliding) return absl::OkStatus();
  return ReadWindow(*family.window, config, spec);
}

absl::Status ReadScale(const ScaleRule& rule, const ConfigObject& config, LayerSpec* spec) {
  switch (rule.kind) {
    case ScaleRule::Kind::kOverRootOfDk:
      return absl::OkStatus();
    case ScaleRule::Kind::kOne:
      spec->scale = 1.0;
      return absl::OkStatus();
    case ScaleRule::Kind::kValue:
    case ScaleRule::Kind::kOverRootOfValue:
      break;
  }
  const absl::StatusOr<double> value = config.PositiveNumber(rule.key, rule.absent);
  if (!value.ok()) return value.status();
  spec->scale = rule.kind == ScaleRule::Kind::kValue ? *value : 1.0 / std::sqrt(*value);
  return absl::OkStatus();
}

absl::Status ReadNorm(const NormRule& rule, const ConfigObject& config, LayerSpec* spec) {
  const absl::StatusOr<bool> used = ReadSwitch(rule.used, config);
  if (!used.ok() || !*used) return used.status();
  const absl::StatusOr<double> epsilon =
      config.PositiveNumber(rule.epsilon_key, rule.epsilon_absent);
  if (!epsilon.ok()) return epsilon.status();
  spec->qk_norm = QkNormSpec{rule.kind, rule.span, *epsilon};
  return absl::OkStatus();
}

// Sizes that don't fit are a caller's as well as a file's to get right; other settings that the
// spec's rules refuse are the file's.
absl::StatusOr<LayerSpec> Resolve(LayerSpec spec) {
  absl::StatusOr<LayerSpec> resolved = ResolveSpec(std::move(spec));
  for (const absl::string_view field : {"rope.", "softcap", "clip", "scale", "position_bias."}) {
    if (resolved.ok() || !absl::StartsWith(resolved.status().message(), field)) continue;
    return absl::DataLossError(absl::StrCat("config.json: ", resolved.status().message()));
  }
  return resolved;
}

}  // namespace

absl::StatusOr<int64_t> ReadLayerCount(const Family& family, const ConfigObject& config) {
  return config.PositiveInt(family.keys->layers, family.defaults.layers);
}

absl::StatusOr<bool> ReadSwitch(const Switch& setting, const ConfigObject& config) {
  if (setting.key.empty()) return setting.absent;
  return config.Bool(setting.key, setting.absent);
}

absl::StatusOr<int64_t> ReadBlockIndex(const Family& family, const ConfigObject& config,
                                       int64_t layer) {
  if (family.groups_key.empty()) return layer;
  const absl::StatusOr<int64_t> layers = ReadLayerCount(family, config);
  if (!layers.ok()) return layers.status();
  const absl::string_view key[] = {family.groups_key};
  const absl::StatusOr<int64_t> groups = config.PositiveInt(key, 1);
  if (!groups.ok()) return groups.status();
  if (*groups > *layers) {
    return config.Refuse(absl::StatusCode::kDataLoss, family.groups_key,
                         absl::StrCat("must be at most ", *layers, " (layers)"), *groups);
  }
  // layer < layers < 2^63 and groups <= layers: the product needs care, the quotient not.
  return static_cast<int64_t>(static_cast<long double>(layer) * static_cast<long double>(*groups) /
                              static_cast<long double>(*layers));
}

absl::StatusOr<std::optional<PreNormSpec>> ReadPreNorm(const Family& family,
                                                       const ConfigObject& config) {
  if (!family.pre_norm.has_value()) return std::nullopt;
  const PreNormRule& rule = *family.pre_norm;
  const absl::StatusOr<bool> used = ReadSwitch(rule.used, config);
  if (!used.ok()) return used.status();
  if (!*used) return std::nullopt;
  if (rule.epsilon_key.empty()) return PreNormSpec{rule.kind, rule.epsilon_absent};
  const absl::StatusOr<double> epsilon =
      config.PositiveNumber(rule.epsilon_key, rule.epsilon_absent);
  if (!epsilon.ok()) return epsilon.status();
  return PreNormSpec{rule.kind, *epsilon};
}

absl::StatusOr<LayerSpec> ReadLayerSpec(const Family& family, const ConfigObject& config,
                                        int64_t layer, std::optional<int64_t> z_width) {
  LayerSpec spec;
  RopeLayer kind;
  spec.orientation = family.block->orientation;
  spec.fused_layout = family.block->fused_layout;
  absl::Status status = config.CheckFixed(family.fixed);
  if (status.ok()) status = ReadSizes(family, config, z_width, &spec);
  if (status.ok()) status = ReadMask(family, config, layer, &kind, &spec);
  if (status.ok()) status = ReadScale(family.scale, config, &spec);
  if (status.ok() && family.norm) status = ReadNorm(*family.norm, config, &spec);
  if (status.ok() && family.adjust != nullptr) status = family.adjust(config, layer, &spec);
  if (status.ok() && family.rope && !spec.position_bias) {
    status = ReadRope(*family.rope, config, kind, &spec);
  }
  if (!status.ok()) return status;
  return Resolve(std::move(spec));
}

}  // namespace headwise
