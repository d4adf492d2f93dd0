// SPDX-License-Identifier: Apache-2.0
// LLaMA and the decoders that share its names.
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

constexpr RoleName kTensors[] = {
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
constexpr RoleName kQkvBiases[] = {
    {TensorRole::kQBias, "q_proj.bias"},
    {TensorRole::kKBias, "k_proj.bias"},
    {TensorRole::kVBias, "v_proj.bias"},
};
constexpr RoleName kNorms[] = {
    {TensorRole::kQNorm, "q_norm.weight"},
    {TensorRole::kKNorm, "k_norm.weight"},
};
constexpr absl::string_view kIgnored[] = {"rotary_emb.inv_freq"};  // a buffer of old files

constexpr absl::string_view kRmsEnters =
    "the residual stream after input_layernorm (RMSNorm, pre-norm)";
constexpr absl::string_view kLayerNormEnters =
    "the residual stream after input_layernorm (LayerNorm, pre-norm)";
constexpr absl::string_view kLeaves = "o_proj with its bias where it has one, before the residual";

constexpr BlockLayout kBlock = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kTensors,
    .biases = kBiases,
    .norms = kNorms,
    .ignored = kIgnored,
    .x_enters = kRmsEnters,
    .y_leaves = kLeaves,
};

// q, k and v with biases, o without.
constexpr BlockLayout kQkvBiased = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kTensors,
    .biases = kQkvBiases,
    .ignored = kIgnored,
    .x_enters = kRmsEnters,
    .y_leaves = "o_proj, before the residual",
};

constexpr RoleName kSinks[] = {
    {TensorRole::kQWeight, "q_proj.weight"}, {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"}, {TensorRole::kOWeight, "o_proj.weight"},
    {TensorRole::kSinks, "sinks"},
};
constexpr BlockLayout kGptOss = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kSinks,
    .biases = kBiases,
    .ignored = kIgnored,
    .x_enters = kRmsEnters,
    .y_leaves = kLeaves,
};

constexpr BlockLayout kParallel = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kTensors,
    .biases = kBiases,
    .norms = kNorms,
    .ignored = kIgnored,
    .x_enters =
        "the residual stream after input_layernorm (LayerNorm, pre-norm; the MLP reads it as well)",
    .y_leaves = "o_proj with its bias where it has one, before it and the MLP's output are added",
};

constexpr BlockLayout kPostNorm = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kTensors,
    .biases = kBiases,
    .norms = kNorms,
    .ignored = kIgnored,
    .x_enters = "the residual stream itself (post-norm)",
    .y_leaves =
        "o_proj with its bias where it has one, before post_attention_layernorm and the residual",
};

constexpr RoleName kHeadNorms[] = {
    {TensorRole::kQNorm, "q_layernorm.norms.{}.weight"},
    {TensorRole::kKNorm, "k_layernorm.norms.{}.weight"},
};
constexpr BlockLayout kStableLm = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kTensors,
    .biases = kQkvBiases,
    .norms = kHeadNorms,
    .ignored = kIgnored,
    .x_enters = kLayerNormEnters,
    .y_leaves = "o_proj, before the residual",
};

constexpr BlockLayout kStarCoder2 = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kTensors,
    .biases = kBiases,
    .ignored = kIgnored,
    .x_enters = kLayerNormEnters,
    .y_leaves = kLeaves,
};

constexpr RoleName kPhiTensors[] = {
    {TensorRole::kQWeight, "q_proj.weight"}, {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"}, {TensorRole::kOWeight, "dense.weight"},
    {TensorRole::kQBias, "q_proj.bias"},     {TensorRole::kKBias, "k_proj.bias"},
    {TensorRole::kVBias, "v_proj.bias"},     {TensorRole::kOBias, "dense.bias"},
};
constexpr RoleName kPhiNorms[] = {
    {TensorRole::kQNorm, "q_layernorm.weight"},
    {TensorRole::kKNorm, "k_layernorm.weight"},
    {TensorRole::kQNormBias, "q_layernorm.bias"},
    {TensorRole::kKNormBias, "k_layernorm.bias"},
};
constexpr BlockLayout kPhi = {
    .head = "layers.",
    .tail = ".self_attn",
    .tensors = kPhiTensors,
    .norms = kPhiNorms,
    .ignored = kIgnored,
    .x_enters =
        "the residual stream after input_layernorm (LayerNorm, pre-norm; the MLP reads it as well)",
    .y_leaves = "self_attn.dense with its bias, before it and the MLP's output are added",
};

constexpr RoleName kPhi3Tensors[] = {
    {TensorRole::kQkvWeight, "qkv_proj.weight"},
    {TensorRole::kOWeight, "o_proj.weight"},
};
constexpr BlockLayout kPhi3 = {
    .head = "layers.",
    .tail = ".self_attn",
    .fused_layout = FusedLayout::kBlocks,
    .tensors = kPhi3Tensors,
    .ignored = kIgnored,
    .x_enters = kRmsEnters,
    .y_leaves = "o_proj, before the residual",
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
    {"clip_qkv", "null"},
};

constexpr absl::string_view kRopeTheta[] = {"rope_theta"};

constexpr RopeRule Rope(double base_absent, double max_positions_absent,
                        double share_absent = 1.0) {
  return {.base_keys = kRopeTheta,
          .base_absent = base_absent,
          .share_absent = share_absent,
          .max_positions_absent = max_positions_absent};
}

constexpr RopeRule Interleaved(RopeRule rope) {
  rope.layout = RopeLayout::kInterleaved;
  return rope;
}

constexpr RopeRule Phi3Rope() {
  RopeRule rope = Rope(10000.0, 4096.0);
  rope.original_absent = 4096.0;
  rope.calls_longrope_yarn = true;
  return rope;
}

const RopeSpec& GptOssScaling() {
  static const RopeSpec* const kScaling = [] {
    auto* const scaling = new RopeSpec;
    scaling->scaling = RopeScaling::kYarn;
    scaling->factor = 32.0;
    scaling->original_max_positions = 4096.0;
    scaling->truncate = false;
    return scaling;
  }();
  return *kScaling;
}

constexpr RopeRule GptOssRope() {
  RopeRule rope = Rope(150000.0, 131072.0);
  rope.without_any_key = GptOssScaling;
  return rope;
}

absl::Status AddSinks(const ConfigObject&, int64_t, LayerSpec* spec) {
  spec->sinks = true;
  return absl::OkStatus();
}

constexpr NormRule kQwen3Norm = {
    {"", true}, NormKind::kRms, QkNormSpan::kHead, "rms_norm_eps", 1e-6};
constexpr NormRule kOlmo2Norm = {
    {"", true}, NormKind::kRms, QkNormSpan::kWidth, "rms_norm_eps", 1e-5};
constexpr NormRule kCohereNorm = {
    {"use_qk_norm", false}, NormKind::kLayerNorm, QkNormSpan::kHeads, "layer_norm_eps", 1e-5};
constexpr NormRule kStableLmNorm = {{"qk_layernorm", false},
                                    NormKind::kLayerNorm,
                                    QkNormSpan::kHeads,
                                    "layer_norm_eps",
                                    1e-5,
                                    true};
constexpr NormRule kPhiNorm = {
    {"qk_layernorm", false}, NormKind::kLayerNorm, QkNormSpan::kHead, "layer_norm_eps", 1e-5};

constexpr WindowRule kAll = {"sliding_window", std::nullopt};
constexpr WindowRule kMistralWindow = {"sliding_window", 4096};
constexpr WindowRule kFromLayer = {"sliding_window", 4096, WindowLayers::kFromLayer, 28};
constexpr WindowRule kEven = {"sliding_window", 128, WindowLayers::kEven};

// What most of them have in common.
constexpr Family Row(absl::string_view model_type, const BlockLayout* block, SizeDefaults defaults,
                     Switch biases, RopeRule rope) {
  return {
      .model_type = model_type,
      .block = block,
      .keys = &kKeys,
      .defaults = defaults,
      .fixed = kFixed,
      .mask = MaskRule::kCausal,
      .biases = biases,
      .rope = rope,
  };
}

constexpr Family WithWindow(Family row, const WindowRule& window) {
  row.window = window;
  return row;
}

constexpr Family WithNorm(Family row, const NormRule& norm) {
  row.norm = norm;
  return row;
}

constexpr Family AfterRms(Family row, double epsilon_absent = 1e-6) {
  row.pre_norm = PreNormRule{"input_layernorm", NormKind::kRms, "rms_norm_eps", epsilon_absent};
  return row;
}

constexpr Family AfterLayerNorm(Family row, absl::string_view epsilon_key = "layer_norm_eps") {
  row.pre_norm = PreNormRule{"input_layernorm", NormKind::kLayerNorm, epsilon_key, 1e-5};
  return row;
}

constexpr Family WithScale(Family row, const ScaleRule& scale) {
  row.scale = scale;
  return row;
}

constexpr Family WithSinks(Family row) {
  row.adjust = AddSinks;
  return row;
}

constexpr Switch kNoBiases = {"", false};
constexpr Switch kIfAttentionBias = {"attention_bias", false};

// Sizes: D, H, G, layers, head_dim.
constexpr Family kFamilies[] = {
    AfterRms(
        Row("llama", &kBlock, {4096, 32, std::nullopt, 32}, kIfAttentionBias, Rope(1e4, 2048))),
    WithWindow(AfterRms(Row("mistral", &kBlock, {4096, 32, 8, 32}, kNoBiases, Rope(1e4, 131072))),
               kMistralWindow),
    WithWindow(
        AfterRms(Row("mixtral", &kBlock, {4096, 32, 8, 32}, kNoBiases, Rope(1e6, 131072)), 1e-5),
        kAll),
    WithWindow(
        AfterRms(Row("qwen2", &kQkvBiased, {4096, 32, 32, 32}, {"", true}, Rope(1e4, 32768))),
        kFromLayer),
    WithWindow(WithNorm(AfterRms(Row("qwen3", &kBlock, {4096, 32, 32, 32, 128}, kIfAttentionBias,
                                     Rope(1e4, 32768))),
                        kQwen3Norm),
               kFromLayer),
    WithNorm(AfterLayerNorm(
                 Row("phi", &kPhi, {2048, 32, std::nullopt, 24}, kNoBiases, Rope(1e4, 2048, 0.5))),
             kPhiNorm),
    WithWindow(
        AfterRms(Row("phi3", &kPhi3, {3072, 32, std::nullopt, 32}, kNoBiases, Phi3Rope()), 1e-5),
        kAll),
    WithWindow(WithSinks(AfterRms(Row("gpt_oss", &kGptOss, {2880, 64, 8, 36, 64},
                                      {"attention_bias", true}, GptOssRope()),
                                  1e-5)),
               kEven),
    WithNorm(AfterLayerNorm(Row("cohere", &kParallel, {8192, 64, std::nullopt, 40},
                                kIfAttentionBias, Interleaved(Rope(5e5, 8192)))),
             kCohereNorm),
    WithNorm(
        Row("olmo2", &kPostNorm, {4096, 32, std::nullopt, 32}, kIfAttentionBias, Rope(1e4, 2048)),
        kOlmo2Norm),
    WithNorm(AfterLayerNorm(Row("stablelm", &kStableLm, {2560, 32, 32, 32}, {"use_qkv_bias", false},
                                Rope(1e4, 4096, 0.25))),
             kStableLmNorm),
    WithWindow(AfterLayerNorm(Row("starcoder2", &kStarCoder2, {3072, 24, 2, 30}, {"use_bias", true},
                                  Rope(1e4, 4096)),
                              "norm_epsilon"),
               kAll),
    WithScale(AfterRms(Row("granite", &kBlock, {4096, 32, std::nullopt, 32}, kIfAttentionBias,
                           Rope(1e4, 2048))),
              {ScaleRule::Kind::kValue, "attention_multiplier", 1.0}),
};

}  // namespace

absl::Span<const Family> LlamaFamilies() { return kFamilies; }

}  // namespace headwise
