// SPDX-License-Identifier: Apache-2.0
// Encoders with module layouts of their own: DistilBERT, ALBERT, ModernBERT, ViT, CLIP.
#include "absl/strings/str_cat.h"
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

constexpr absl::string_view kDim[] = {"dim", "hidden_size"};
constexpr absl::string_view kHiddenSize[] = {"hidden_size"};
constexpr absl::string_view kHeads[] = {"num_attention_heads"};
constexpr absl::string_view kLayers[] = {"num_hidden_layers"};
constexpr absl::string_view kNHeads[] = {"n_heads", "num_attention_heads"};
constexpr absl::string_view kNLayers[] = {"n_layers", "num_hidden_layers"};
constexpr SizeKeys kKeys = {kHiddenSize, kHeads, {}, {}, kLayers};
constexpr SizeKeys kDistilKeys = {kDim, kNHeads, {}, {}, kNLayers};

constexpr FixedSetting kFixed[] = {
    {"position_embedding_type", "\"absolute\""},
    {"pruned_heads", "{}"},
};

constexpr RoleName kDistilTensors[] = {
    {TensorRole::kQWeight, "q_lin.weight"}, {TensorRole::kKWeight, "k_lin.weight"},
    {TensorRole::kVWeight, "v_lin.weight"}, {TensorRole::kOWeight, "out_lin.weight"},
    {TensorRole::kQBias, "q_lin.bias"},     {TensorRole::kKBias, "k_lin.bias"},
    {TensorRole::kVBias, "v_lin.bias"},     {TensorRole::kOBias, "out_lin.bias"},
};
constexpr BlockLayout kDistil = {
    .head = "transformer.layer.",
    .tail = ".attention",
    .tensors = kDistilTensors,
    .x_enters = "the hidden states that enter the block (post-norm)",
    .y_leaves = "attention.out_lin with its bias, before the residual and sa_layer_norm",
};

constexpr RoleName kAlbertTensors[] = {
    {TensorRole::kQWeight, "query.weight"}, {TensorRole::kKWeight, "key.weight"},
    {TensorRole::kVWeight, "value.weight"}, {TensorRole::kOWeight, "dense.weight"},
    {TensorRole::kQBias, "query.bias"},     {TensorRole::kKBias, "key.bias"},
    {TensorRole::kVBias, "value.bias"},     {TensorRole::kOBias, "dense.bias"},
};
constexpr absl::string_view kAlbertIgnored[] = {"LayerNorm.weight", "LayerNorm.bias",
                                                "LayerNorm.gamma", "LayerNorm.beta"};
constexpr BlockLayout kAlbert = {
    .head = "encoder.albert_layer_groups.",
    .tail = ".albert_layers.0.attention",
    .tensors = kAlbertTensors,
    .ignored = kAlbertIgnored,
    .x_enters = "the hidden states that enter the layer (post-norm)",
    .y_leaves = "attention.dense with its bias, before the residual and attention.LayerNorm",
};
// With several inner layers a number would not say which one is meant.
constexpr FixedSetting kAlbertFixed[] = {
    {"position_embedding_type", "\"absolute\""},
    {"pruned_heads", "{}"},
    {"inner_group_num", "1"},
};

constexpr RoleName kModernTensors[] = {
    {TensorRole::kQkvWeight, "Wqkv.weight"},
    {TensorRole::kOWeight, "Wo.weight"},
};
constexpr RoleName kModernBiases[] = {
    {TensorRole::kQkvBias, "Wqkv.bias"},
    {TensorRole::kOBias, "Wo.bias"},
};
constexpr absl::string_view kModernIgnored[] = {"rotary_emb.inv_freq"};
constexpr BlockLayout kModern = {
    .head = "layers.",
    .tail = ".attn",
    .fused_layout = FusedLayout::kBlocks,
    .tensors = kModernTensors,
    .biases = kModernBiases,
    .ignored = kModernIgnored,
    .x_enters = "the residual stream after attn_norm (LayerNorm, pre-norm; layer 0 has none)",
    .y_leaves = "attn.Wo with its bias where it has one, before the residual",
};
constexpr absl::string_view kGlobalTheta[] = {"global_rope_theta"};

constexpr RoleName kVitTensors[] = {
    {TensorRole::kQWeight, "attention.query.weight"},
    {TensorRole::kKWeight, "attention.key.weight"},
    {TensorRole::kVWeight, "attention.value.weight"},
    {TensorRole::kOWeight, "output.dense.weight"},
    {TensorRole::kOBias, "output.dense.bias"},
};
constexpr RoleName kVitBiases[] = {
    {TensorRole::kQBias, "attention.query.bias"},
    {TensorRole::kKBias, "attention.key.bias"},
    {TensorRole::kVBias, "attention.value.bias"},
};
constexpr BlockLayout kVit = {
    .head = "encoder.layer.",
    .tail = ".attention",
    .tensors = kVitTensors,
    .biases = kVitBiases,
    .x_enters = "the residual stream after layernorm_before (LayerNorm, pre-norm)",
    .y_leaves = "attention.output.dense with its bias, before the residual",
};

constexpr RoleName kClipTensors[] = {
    {TensorRole::kQWeight, "q_proj.weight"}, {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"}, {TensorRole::kOWeight, "out_proj.weight"},
    {TensorRole::kQBias, "q_proj.bias"},     {TensorRole::kKBias, "k_proj.bias"},
    {TensorRole::kVBias, "v_proj.bias"},     {TensorRole::kOBias, "out_proj.bias"},
};
constexpr absl::string_view kClipEnters =
    "the residual stream after layer_norm1 (LayerNorm, pre-norm)";
constexpr absl::string_view kClipLeaves = "self_attn.out_proj with its bias, before the residual";
constexpr BlockLayout kClipText = {
    .head = "text_model.encoder.layers.",
    .tail = ".self_attn",
    .tensors = kClipTensors,
    .x_enters = kClipEnters,
    .y_leaves = kClipLeaves,
};
constexpr BlockLayout kClipVision = {
    .head = "vision_model.encoder.layers.",
    .tail = ".self_attn",
    .tensors = kClipTensors,
    .x_enters = kClipEnters,
    .y_leaves = kClipLeaves,
};

constexpr PreNormRule kClipNorm = {.name = "layer_norm1", .epsilon_key = "layer_norm_eps"};

constexpr Family Vit(absl::string_view model_type) {
  return {
      .model_type = model_type,
      .block = &kVit,
      .keys = &kKeys,
      .defaults = {.d_model = 768, .heads = 12, .layers = 12},
      .fixed = kFixed,
      .biases = {"qkv_bias", true},
      .pre_norm =
          PreNormRule{
              .name = "layernorm_before", .epsilon_key = "layer_norm_eps", .epsilon_absent = 1e-12},
  };
}

constexpr Family kFamilies[] = {
    {
        .model_type = "distilbert",
        .block = &kDistil,
        .keys = &kDistilKeys,
        .defaults = {.d_model = 768, .heads = 12, .layers = 6},
        .fixed = kFixed,
    },
    {
        .model_type = "albert",
        .block = &kAlbert,
        .keys = &kKeys,
        .defaults = {.d_model = 4096, .heads = 64, .layers = 12},
        .fixed = kAlbertFixed,
        .groups_key = "num_hidden_groups",
    },
    {
        .model_type = "modernbert",
        .block = &kModern,
        .keys = &kKeys,
        .defaults = {.d_model = 768, .heads = 12, .layers = 22},
        .fixed = kFixed,
        .window = WindowRule{"local_attention", 128, WindowLayers::kAllButEach, 3, true},
        .biases = {"attention_bias", false},
        .rope =
            RopeRule{
                .base_keys = kGlobalTheta,
                .base_absent = 160000.0,
                .sliding_base_key = "local_rope_theta",
                .sliding_base_absent = 10000.0,
                .null_sliding_base_is_full = true,
                .max_positions_absent = 8192.0,
            },
        .pre_norm = PreNormRule{.name = "attn_norm", .epsilon_key = "norm_eps"},
    },
    Vit("vit"),
    Vit("deit"),
    {
        .model_type = "clip",
        .part = "text",
        .section = "text_config",
        .block = &kClipText,
        .keys = &kKeys,
        .defaults = {.d_model = 512, .heads = 8, .layers = 12},
        .mask = MaskRule::kCausal,
        .pre_norm = kClipNorm,
    },
    {
        .model_type = "clip",
        .part = "vision",
        .section = "vision_config",
        .block = &kClipVision,
        .keys = &kKeys,
        .defaults = {.d_model = 768, .heads = 12, .layers = 12},
        .pre_norm = kClipNorm,
    },
};

}  // namespace

absl::Span<const Family> EncoderFamilies() { return kFamilies; }

}  // namespace headwise
