// SPDX-License-Identifier: Apache-2.0
// Gemma 1 to 3.
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
constexpr RoleName kNorms[] = {
    {TensorRole::kQNorm, "q_norm.weight"},
    {TensorRole::kKNorm, "k_norm.weight"},
};
constexpr absl::string_view kIgnored[] = {"rotary_emb.inv_freq"};

constexpr BlockLayout Block(absl::string_view head) {
  return {
      .head = head,
      .tail = ".self_attn",
      .tensors = kTensors,
      .biases = kBiases,
      .norms = kNorms,
      .ignored = kIgnored,
      .x_enters = "the residual stream after input_layernorm (RMSNorm with 1 + w, pre-norm)",
      .y_leaves =
          "o_proj with its bias where it has one, before any norm that follows and the residual",
  };
}
constexpr BlockLayout kBlock = Block("layers.");
// The language model beside a vision tower, whose blocks have the same names.
constexpr BlockLayout kText = Block("language_model.model.layers.");
constexpr BlockLayout kNewerText = Block("language_model.layers.");

constexpr absl::string_view kHiddenSize[] = {"hidden_size"};
constexpr absl::string_view kHeads[] = {"num_attention_heads"};
constexpr absl::string_view kKvHeads[] = {"num_key_value_heads"};
constexpr absl::string_view kHeadDim[] = {"head_dim"};
constexpr absl::string_view kLayers[] = {"num_hidden_layers"};
constexpr SizeKeys kKeys = {kHiddenSize, kHeads, kKvHeads, kHeadDim, kLayers};
constexpr absl::string_view kRopeTheta[] = {"rope_theta"};

constexpr FixedSetting kFixed[] = {
    {"is_causal", "true"},
    {"use_bidirectional_attention", "false"},
};

absl::Status AddSoftcap(const ConfigObject& config, int64_t, LayerSpec* spec) {
  const absl::StatusOr<std::optional<double>> cap =
      config.NumberOrNull("attn_logit_softcapping", 50.0);
  if (!cap.ok()) return cap.status();
  spec->softcap = *cap;
  return absl::OkStatus();
}

constexpr PreNormRule kPreNorm = {"input_layernorm", NormKind::kRmsPlusOne, "rms_norm_eps", 1e-6};

constexpr ScaleRule kQueryScalar = {ScaleRule::Kind::kOverRootOfValue, "query_pre_attn_scalar",
                                    256.0};

// Its soft-cap key exists, but the attention does not apply it.
constexpr Family Gemma3(absl::string_view model_type) {
  return {
      .model_type = model_type,
      .block = &kBlock,
      .keys = &kKeys,
      .defaults = {2304, 8, 4, 26, 256},
      .fixed = kFixed,
      .mask = MaskRule::kCausal,
      .window = WindowRule{"sliding_window", 4096, WindowLayers::kAllButNth, 6},
      .biases = {"attention_bias", false},
      .rope = RopeRule{.base_keys = kRopeTheta,
                       .base_absent = 1e6,
                       .sliding_base_key = "rope_local_base_freq",
                       .sliding_base_absent = 1e4,
                       .max_positions_absent = 131072.0},
      .norm = NormRule{{"", true}, NormKind::kRmsPlusOne, QkNormSpan::kHead, "rms_norm_eps", 1e-6},
      .pre_norm = kPreNorm,
      .scale = kQueryScalar,
  };
}

constexpr Family Gemma3Text() {
  Family row = Gemma3("gemma3");
  row.part = "text";
  row.section = "text_config";
  row.block = &kText;
  row.other_block = &kNewerText;
  return row;
}

constexpr Family kFamilies[] = {
    {
        .model_type = "gemma",
        .block = &kBlock,
        .keys = &kKeys,
        .defaults = {3072, 16, 16, 28, 256},
        .fixed = kFixed,
        .mask = MaskRule::kCausal,
        .biases = {"attention_bias", false},
        .rope = RopeRule{.base_keys = kRopeTheta, .max_positions_absent = 8192.0},
        .pre_norm = kPreNorm,
    },
    {
        .model_type = "gemma2",
        .block = &kBlock,
        .keys = &kKeys,
        .defaults = {2304, 8, 4, 26, 256},
        .fixed = kFixed,
        .mask = MaskRule::kCausal,
        .window = WindowRule{"sliding_window", 4096, WindowLayers::kEven},
        .biases = {"attention_bias", false},
        .rope = RopeRule{.base_keys = kRopeTheta, .max_positions_absent = 8192.0},
        .pre_norm = kPreNorm,
        .scale = kQueryScalar,
        .adjust = AddSoftcap,
    },
    Gemma3("gemma3_text"),
    Gemma3Text(),
};

}  // namespace

absl::Span<const Family> GemmaFamilies() { return kFamilies; }

}  // namespace headwise
