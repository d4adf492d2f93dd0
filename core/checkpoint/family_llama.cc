// SPDX-License-Identifier: Apache-2.0
// LLaMA and the decoders that share its names.
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

constexpr RoleName kWeights[] = {
    {TensorRole::kQWeight, "q_proj.weight"},
    {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"},
    {TensorRole::kOWeight, "o_proj.weight"},
};
constexpr RoleName kBiases[] = {
    {TensorRole::kQBias, "q_proj.bias"},
    {TensorRole::kKBias, "k_proj.bias"},
    {TensorRole::kVBias, "v_proj.bias"},
    {TensorRole::kOBias, "o_proj.bias"},
};
constexpr absl::string_view kIgnored[] = {"rotary_emb.inv_freq"};  // a buffer of old files

constexpr BlockLayout kBlock = {
    .head = "layers.",
    .tail = ".self_attn",
    .orientation = Orientation::kOutIn,
    .fused_layout = FusedLayout::kSeparate,
    .weights = kWeights,
    .biases = kBiases,
    .ignored = kIgnored,
    .x_enters = "the residual stream after input_layernorm (RMSNorm, pre-norm)",
    .y_leaves = "o_proj with its bias where it has one, before the residual",
};

constexpr absl::string_view kHiddenSize[] = {"hidden_size"};
constexpr absl::string_view kHeads[] = {"num_attention_heads"};
constexpr absl::string_view kKvHeads[] = {"num_key_value_heads"};
constexpr absl::string_view kHeadDim[] = {"head_dim"};
constexpr absl::string_view kLayers[] = {"num_hidden_layers"};
constexpr SizeKeys kKeys = {kHiddenSize, kHeads, kKvHeads, kHeadDim, kLayers};

constexpr FixedSetting kFixed[] = {
    {"is_causal", "true"},
    {"use_bidirectional_attention", "false"},
};

constexpr Family kFamilies[] = {
    {
        .model_type = "llama",
        .block = &kBlock,
        .keys = &kKeys,
        .defaults = {4096, 32, std::nullopt, 32},
        .fixed = kFixed,
        .mask = MaskRule::kCausal,
        .window = std::nullopt,
        .bias_key = "attention_bias",
        .biases_if_no_key = false,
        .rope = RopeLayout::kHalf,
        .rope_base_if_absent = 10000.0,
    },
    {
        .model_type = "mistral",
        .block = &kBlock,
        .keys = &kKeys,
        .defaults = {4096, 32, 8, 32},
        .fixed = kFixed,
        .mask = MaskRule::kCausal,
        .window = WindowRule{"sliding_window", 4096},
        .bias_key = "",
        .biases_if_no_key = false,
        .rope = RopeLayout::kHalf,
        .rope_base_if_absent = 10000.0,
    },
};

}  // namespace

absl::Span<const Family> LlamaFamilies() { return kFamilies; }

}  // namespace headwise
