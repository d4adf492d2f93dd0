// SPDX-License-Identifier: Apache-2.0
// Decoders with fused projections and ALiBi: BLOOM, Falcon under its three names, MPT.
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

constexpr absl::string_view kHiddenSize[] = {"hidden_size", "n_embed"};
constexpr absl::string_view kBloomHeads[] = {"n_head", "num_attention_heads"};
constexpr absl::string_view kBloomLayers[] = {"n_layer", "num_hidden_layers"};
constexpr absl::string_view kFalconHeads[] = {"num_attention_heads", "n_head"};
constexpr absl::string_view kFalconLayers[] = {"num_hidden_layers", "n_layer"};
constexpr absl::string_view kDModel[] = {"d_model", "hidden_size"};
constexpr absl::string_view kMptHeads[] = {"n_heads", "num_attention_heads"};
constexpr absl::string_view kMptLayers[] = {"n_layers", "num_hidden_layers"};
constexpr SizeKeys kBloomKeys = {kHiddenSize, kBloomHeads, {}, {}, kBloomLayers};
constexpr SizeKeys kFalconKeys = {kHiddenSize, kFalconHeads, {}, {}, kFalconLayers};
constexpr SizeKeys kMptKeys = {kDModel, kMptHeads, {}, {}, kMptLayers};

constexpr RoleName kTensors[] = {
    {TensorRole::kQkvWeight, "query_key_value.weight"},
    {TensorRole::kOWeight, "dense.weight"},
};
constexpr RoleName kBiases[] = {
    {TensorRole::kQkvBias, "query_key_value.bias"},
    {TensorRole::kOBias, "dense.bias"},
};
constexpr absl::string_view kIgnored[] = {"rotary_emb.inv_freq", "maybe_rotary.inv_freq"};
constexpr BlockLayout kBloom = {
    .head = "h.",
    .tail = ".self_attention",
    .fused_layout = FusedLayout::kPerHead,
    .tensors = kTensors,
    .biases = kBiases,
    .x_enters = "the residual stream after input_layernorm (LayerNorm, pre-norm)",
    .y_leaves = "self_attention.dense with its bias, before the residual",
};
constexpr BlockLayout kFalcon = {
    .head = "h.",
    .tail = ".self_attention",
    .fused_layout = FusedLayout::kPerGroup,
    .tensors = kTensors,
    .biases = kBiases,
    .ignored = kIgnored,
    .x_enters = "the residual stream after input_layernorm or ln_attn (LayerNorm, pre-norm)",
    .y_leaves = "self_attention.dense with its bias where it has one, before the residual",
};

constexpr RoleName kMptTensors[] = {
    {TensorRole::kQkvWeight, "Wqkv.weight"},
    {TensorRole::kOWeight, "out_proj.weight"},
};
constexpr BlockLayout kMpt = {
    .head = "blocks.",
    .tail = ".attn",
    .fused_layout = FusedLayout::kBlocks,
    .tensors = kMptTensors,
    .x_enters = "the residual stream after norm_1 (LayerNorm, pre-norm)",
    .y_leaves = "attn.out_proj, before the residual",
};

constexpr double kAlibiMaxBias = 8.0;

// More heads than any layer may have get no slopes: ResolveSpec refuses their number.
void AddAlibi(double max_bias, LayerSpec* spec) {
  spec->position_bias.emplace();
  if (spec->heads > kMaxHeads) return;
  spec->position_bias->slopes = AlibiSlopes(spec->heads, max_bias);
}

absl::Status AdjustBloom(const ConfigObject&, int64_t, LayerSpec* spec) {
  AddAlibi(kAlibiMaxBias, spec);
  return absl::OkStatus();
}

// Key/value heads and fused layout. Files of the `old_names` have neither a key that says which
// architecture it is nor, in some, the count of key/value heads.
absl::Status ReadFalconHeads(const ConfigObject& config, bool old_names, LayerSpec* spec) {
  constexpr absl::string_view kKvHeads[] = {"num_kv_heads", "n_head_kv"};
  const absl::StatusOr<std::string> model_type = config.String(kModelTypeKey, "");
  if (!model_type.ok()) return model_type.status();
  const absl::StatusOr<bool> grouped =
      config.Bool("new_decoder_architecture", *model_type == "RefinedWeb");
  if (!grouped.ok()) return grouped.status();
  const absl::StatusOr<bool> multi_query = config.Bool("multi_query", true);
  if (!multi_query.ok()) return multi_query.status();
  const absl::StatusOr<std::optional<int64_t>> count =
      config.PositiveIntOrNull(kKvHeads, std::nullopt);
  if (!count.ok()) return count.status();
  if (*grouped) {
    const bool one = old_names && *multi_query;
    spec->kv_heads = count->value_or(one ? 1 : spec->heads);
    spec->fused_layout = FusedLayout::kPerGroup;
  } else {
    spec->kv_heads = *multi_query ? 1 : spec->heads;
    spec->fused_layout = *multi_query ? FusedLayout::kBlocks : FusedLayout::kPerHead;
  }
  return absl::OkStatus();
}

// ALiBi in place of RoPE, scaled and rounded to bf16.
absl::Status ReadFalconPositions(const ConfigObject& config, LayerSpec* spec) {
  const absl::StatusOr<bool> alibi = config.Bool("alibi", false);
  if (!alibi.ok() || !*alibi) return alibi.status();
  AddAlibi(kAlibiMaxBias, spec);
  spec->position_bias->scaled = true;
  spec->position_bias->rounded_to_bf16 = true;
  return absl::OkStatus();
}

absl::Status AdjustFalcon(const ConfigObject& config, int64_t, LayerSpec* spec) {
  absl::Status status = ReadFalconHeads(config, false, spec);
  if (!status.ok()) return status;
  return ReadFalconPositions(config, spec);
}

absl::Status AdjustRefinedWeb(const ConfigObject& config, int64_t, LayerSpec* spec) {
  absl::Status status = ReadFalconHeads(config, true, spec);
  if (!status.ok()) return status;
  return ReadFalconPositions(config, spec);
}

// attn_config's settings; transformers reads fewer than MPT's own code, so those that only the
// latter reads must have the value that both carry out.
constexpr FixedSetting kMptFixed[] = {
    {"alibi", "true"},
    {"qk_ln", "false"},
    {"prefix_lm", "false"},
    {"attn_uses_sequence_id", "false"},
    {"attn_type", "\"multihead_attention\""},
};

absl::Status AdjustMpt(const ConfigObject& config, int64_t, LayerSpec* spec) {
  const absl::StatusOr<std::optional<ConfigObject>> found = config.Object("attn_config");
  if (!found.ok()) return found.status();
  double max_bias = kAlibiMaxBias;
  if (found->has_value()) {
    const ConfigObject& attention = **found;
    if (absl::Status status = attention.CheckFixed(kMptFixed); !status.ok()) return status;
    const absl::StatusOr<double> bias = attention.PositiveNumber("alibi_bias_max", max_bias);
    if (!bias.ok()) return bias.status();
    max_bias = *bias;
    absl::StatusOr<std::optional<double>> clip = attention.NumberOrNull("clip_qkv", std::nullopt);
    if (!clip.ok()) return clip.status();
    if (clip->value_or(0.0) != 0.0) spec->clip = **clip;  // 0 is none, as null
    absl::StatusOr<std::optional<double>> scale =
        attention.NumberOrNull("softmax_scale", std::nullopt);
    if (!scale.ok()) return scale.status();
    spec->scale = *scale;
  }
  AddAlibi(max_bias, spec);
  return absl::OkStatus();
}

constexpr absl::string_view kRopeTheta[] = {"rope_theta"};

constexpr Family Falcon(absl::string_view model_type,
                        absl::Status (*adjust)(const ConfigObject&, int64_t, LayerSpec*)) {
  return {
      .model_type = model_type,
      .block = &kFalcon,
      .keys = &kFalconKeys,
      .defaults = {.d_model = 4544, .heads = 71, .layers = 32},
      .mask = MaskRule::kCausal,
      .biases = {"bias", false},
      .rope = RopeRule{.base_keys = kRopeTheta},
      .pre_norm = PreNormRule{.name = "ln_attn",
                              .epsilon_key = "layer_norm_epsilon",
                              .other_name = "input_layernorm"},
      .adjust = adjust,
  };
}

constexpr Family kFamilies[] = {
    {
        .model_type = "bloom",
        .block = &kBloom,
        .keys = &kBloomKeys,
        .defaults = {.d_model = 64, .heads = 8, .layers = 2},
        .mask = MaskRule::kCausal,
        .biases = {"", true},
        .pre_norm = PreNormRule{.name = "input_layernorm", .epsilon_key = "layer_norm_epsilon"},
        .adjust = AdjustBloom,
    },
    Falcon("falcon", AdjustFalcon),
    Falcon("RefinedWeb", AdjustRefinedWeb),
    Falcon("RefinedWebModel", AdjustRefinedWeb),
    {
        .model_type = "mpt",
        .block = &kMpt,
        .keys = &kMptKeys,
        .defaults = {.d_model = 2048, .heads = 16, .layers = 24},
        .mask = MaskRule::kCausal,
        .pre_norm = PreNormRule{.name = "norm_1", .epsilon_key = "layer_norm_epsilon"},
        .adjust = AdjustMpt,
    },
};

}  // namespace

absl::Span<const Family> FalconFamilies() { return kFamilies; }

}  // namespace headwise
