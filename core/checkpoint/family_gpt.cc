// SPDX-License-Identifier: Apache-2.0
// GPT-2 and the decoders with layouts near it.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

using nlohmann::json;

constexpr absl::string_view kNEmbd[] = {"n_embd", "hidden_size"};
constexpr absl::string_view kHiddenSize[] = {"hidden_size"};
constexpr absl::string_view kNHead[] = {"n_head", "num_attention_heads"};
constexpr absl::string_view kHeads[] = {"num_attention_heads"};
constexpr absl::string_view kNumHeads[] = {"num_heads", "num_attention_heads"};
constexpr absl::string_view kNLayer[] = {"n_layer", "num_hidden_layers"};
constexpr absl::string_view kHiddenLayers[] = {"num_hidden_layers"};
constexpr absl::string_view kNumLayers[] = {"num_layers", "num_hidden_layers"};
constexpr absl::string_view kDModel[] = {"d_model", "hidden_size"};
constexpr absl::string_view kAttentionHeads[] = {"attention_heads", "num_attention_heads"};
constexpr SizeKeys kGptKeys = {kNEmbd, kNHead, {}, {}, kNLayer};
constexpr SizeKeys kPlainKeys = {kHiddenSize, kHeads, {}, {}, kHiddenLayers};
constexpr SizeKeys kNeoKeys = {kHiddenSize, kNumHeads, {}, {}, kNumLayers};
constexpr SizeKeys kXglmKeys = {kDModel, kAttentionHeads, {}, {}, kNumLayers};

constexpr absl::string_view kMaskBuffers[] = {"bias", "masked_bias"};
constexpr absl::string_view kAfterLn1 = "the residual stream after ln_1 (LayerNorm, pre-norm)";

constexpr RoleName kGptTensors[] = {
    {TensorRole::kQkvWeight, "c_attn.weight"},
    {TensorRole::kOWeight, "c_proj.weight"},
    {TensorRole::kQkvBias, "c_attn.bias"},
    {TensorRole::kOBias, "c_proj.bias"},
};
constexpr BlockLayout kGpt2 = {
    .head = "h.",
    .tail = ".attn",
    .orientation = Orientation::kInOut,
    .fused_layout = FusedLayout::kBlocks,
    .tensors = kGptTensors,
    .ignored = kMaskBuffers,
    .x_enters = kAfterLn1,
    .y_leaves = "attn.c_proj with its bias, before the residual",
};
constexpr RoleName kGpt2CrossTensors[] = {
    {TensorRole::kQWeight, "q_attn.weight"}, {TensorRole::kKvWeight, "c_attn.weight"},
    {TensorRole::kOWeight, "c_proj.weight"}, {TensorRole::kQBias, "q_attn.bias"},
    {TensorRole::kKvBias, "c_attn.bias"},    {TensorRole::kOBias, "c_proj.bias"},
};
constexpr BlockLayout kGpt2Cross = {
    .head = "h.",
    .tail = ".crossattention",
    .orientation = Orientation::kInOut,
    .fused_layout = FusedLayout::kBlocks,
    .tensors = kGpt2CrossTensors,
    .ignored = kMaskBuffers,
    .x_enters = "the residual stream after ln_cross_attn (LayerNorm, pre-norm)",
    .y_leaves = "crossattention.c_proj with its bias, before the residual",
};
// The same names, but an nn.Linear.
constexpr BlockLayout kBigCode = {
    .head = "h.",
    .tail = ".attn",
    .fused_layout = FusedLayout::kBlocks,
    .tensors = kGptTensors,
    .x_enters = kAfterLn1,
    .y_leaves = "attn.c_proj with its bias, before the residual",
};

constexpr RoleName kNeoTensors[] = {
    {TensorRole::kQWeight, "q_proj.weight"}, {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"}, {TensorRole::kOWeight, "out_proj.weight"},
    {TensorRole::kOBias, "out_proj.bias"},
};
constexpr BlockLayout kNeo = {
    .head = "h.",
    .tail = ".attn.attention",
    .tensors = kNeoTensors,
    .ignored = kMaskBuffers,
    .x_enters = kAfterLn1,
    .y_leaves = "attn.attention.out_proj with its bias, before the residual",
};

constexpr RoleName kGptjTensors[] = {
    {TensorRole::kQWeight, "q_proj.weight"},
    {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"},
    {TensorRole::kOWeight, "out_proj.weight"},
};
constexpr BlockLayout kGptj = {
    .head = "h.",
    .tail = ".attn",
    .tensors = kGptjTensors,
    .ignored = kMaskBuffers,
    .x_enters = "the residual stream after ln_1 (LayerNorm, pre-norm; the MLP reads it as well)",
    .y_leaves = "attn.out_proj, before it and the MLP's output are added to the residual",
};

constexpr RoleName kNeoxTensors[] = {
    {TensorRole::kQkvWeight, "query_key_value.weight"},
    {TensorRole::kOWeight, "dense.weight"},
};
constexpr RoleName kNeoxBiases[] = {
    {TensorRole::kQkvBias, "query_key_value.bias"},
    {TensorRole::kOBias, "dense.bias"},
};
constexpr absl::string_view kNeoxIgnored[] = {"bias", "masked_bias", "rotary_emb.inv_freq"};
constexpr BlockLayout kNeox = {
    .head = "layers.",
    .tail = ".attention",
    .fused_layout = FusedLayout::kPerHead,
    .tensors = kNeoxTensors,
    .biases = kNeoxBiases,
    .ignored = kNeoxIgnored,
    .x_enters = "the residual stream after input_layernorm (LayerNorm, pre-norm)",
    .y_leaves = "attention.dense with its bias where it has one, before the residual",
};
constexpr absl::string_view kNeoxBase[] = {"rotary_emb_base", "rope_theta"};

constexpr RoleName kOptTensors[] = {
    {TensorRole::kQWeight, "q_proj.weight"},
    {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"},
    {TensorRole::kOWeight, "out_proj.weight"},
};
constexpr RoleName kOptBiases[] = {
    {TensorRole::kQBias, "q_proj.bias"},
    {TensorRole::kKBias, "k_proj.bias"},
    {TensorRole::kVBias, "v_proj.bias"},
    {TensorRole::kOBias, "out_proj.bias"},
};
constexpr BlockLayout Opt(absl::string_view head) {
  return {
      .head = head,
      .tail = ".self_attn",
      .tensors = kOptTensors,
      .biases = kOptBiases,
      .x_enters =
          "the hidden states that enter the q projection: after self_attn_layer_norm "
          "(LayerNorm) where the model has it before the attention (pre-norm)",
      .y_leaves = "self_attn.out_proj with its bias where it has one, before the residual",
  };
}
constexpr BlockLayout kOpt = Opt("decoder.layers.");
constexpr BlockLayout kXglm = Opt("layers.");

// scale_attn_weights and, in GPT-2, a further division by the layer's number.
absl::Status ReadGptScale(const ConfigObject& config, int64_t divisor, LayerSpec* spec) {
  const absl::StatusOr<bool> scaled = config.Bool("scale_attn_weights", true);
  if (!scaled.ok()) return scaled.status();
  if (*scaled && divisor == 1) return absl::OkStatus();
  const double dk = static_cast<double>(spec->d_model) / static_cast<double>(spec->heads);
  spec->scale = (*scaled ? 1.0 / std::sqrt(dk) : 1.0) / static_cast<double>(divisor);
  return absl::OkStatus();
}

absl::Status AdjustGpt2(const ConfigObject& config, int64_t layer, LayerSpec* spec) {
  const absl::StatusOr<bool> by_layer = config.Bool("scale_attn_by_inverse_layer_idx", false);
  if (!by_layer.ok()) return by_layer.status();
  return ReadGptScale(config, *by_layer ? layer + 1 : 1, spec);
}

absl::Status AdjustBigCode(const ConfigObject& config, int64_t, LayerSpec* spec) {
  const absl::StatusOr<bool> multi_query = config.Bool("multi_query", true);
  if (!multi_query.ok()) return multi_query.status();
  spec->kv_heads = *multi_query ? 1 : spec->heads;
  spec->fused_layout = *multi_query ? FusedLayout::kBlocks : FusedLayout::kPerHead;
  return ReadGptScale(config, 1, spec);
}

// The kind of layer `layer` in attention_types, [[[KIND, …], COUNT], …]: each list COUNT times.
absl::StatusOr<std::string> FindInTypes(const ConfigObject& config, const json& types,
                                        int64_t layer) {
  const absl::Status malformed =
      config.Refuse(absl::StatusCode::kDataLoss, "attention_types",
                    absl::StrCat("must be a list of [KINDS, COUNT] with layer ", layer), types);
  if (!types.is_array()) return malformed;
  int64_t place = layer;
  for (const json& entry : types) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_array() || entry[0].empty() ||
        !entry[1].is_number_unsigned()) {
      return malformed;
    }
    const int64_t kinds = static_cast<int64_t>(entry[0].size());
    const uint64_t count = entry[1].get<uint64_t>();
    if (static_cast<uint64_t>(place / kinds) >= count) {
      place -= static_cast<int64_t>(count) * kinds;
      continue;
    }
    const json& kind = entry[0][static_cast<size_t>(place % kinds)];
    if (!kind.is_string()) return malformed;
    return kind.get<std::string>();
  }
  return malformed;
}

absl::StatusOr<std::string> NeoLayerKind(const ConfigObject& config, int64_t layer) {
  const json* const layers = config.Find("attention_layers");
  const size_t index = static_cast<size_t>(layer);
  if (layers != nullptr && !layers->is_null()) {
    if (layers->is_array() && index < layers->size() && (*layers)[index].is_string()) {
      return (*layers)[index].get<std::string>();
    }
    return config.Refuse(absl::StatusCode::kDataLoss, "attention_layers",
                         absl::StrCat("must be a list with a text for layer ", layer), *layers);
  }
  const json* const types = config.Find("attention_types");
  if (types != nullptr && !types->is_null()) return FindInTypes(config, *types, layer);
  return layer % 2 == 0 ? "global" : "local";  // the class's default
}

absl::Status AdjustNeo(const ConfigObject& config, int64_t layer, LayerSpec* spec) {
  const absl::StatusOr<std::string> kind = NeoLayerKind(config, layer);
  if (!kind.ok()) return kind.status();
  if (*kind == "global") return absl::OkStatus();
  if (*kind != "local") {
    return config.Refuse(absl::StatusCode::kUnimplemented,
                         absl::StrCat("attention_layers[", layer, "]"),
                         "not carried out by this release", *kind);
  }
  constexpr absl::string_view kWindow[] = {"window_size"};
  const absl::StatusOr<int64_t> window = config.PositiveInt(kWindow, 256);
  if (!window.ok()) return window.status();
  spec->mask.window = *window;
  return absl::OkStatus();
}

// rotary_dim features of each head; null: as many as the model is wide, which fits one head.
absl::Status AdjustGptj(const ConfigObject& config, int64_t, LayerSpec* spec) {
  constexpr absl::string_view kDims[] = {"rotary_dim"};
  const absl::StatusOr<std::optional<int64_t>> dims = config.PositiveIntOrNull(kDims, 64);
  if (!dims.ok()) return dims.status();
  RopeSpec& rope = spec->rope.emplace();
  rope.layout = RopeLayout::kInterleaved;
  rope.dims = dims->value_or(spec->d_model);
  return absl::OkStatus();
}

constexpr PreNormRule kLn1 = {.name = "ln_1", .epsilon_key = "layer_norm_epsilon"};
// Their LayerNorms leave epsilon to torch.
constexpr PreNormRule kSelfNorm = {.name = "self_attn_layer_norm"};
constexpr PreNormRule kOptNorm = {.name = "self_attn_layer_norm",
                                  .used = {"do_layer_norm_before", true}};

constexpr Family kFamilies[] = {
    {
        .model_type = "gpt2",
        .block = &kGpt2,
        .keys = &kGptKeys,
        .defaults = {.d_model = 768, .heads = 12, .layers = 12},
        .mask = MaskRule::kCausal,
        .pre_norm = kLn1,
        .adjust = AdjustGpt2,
    },
    {
        .model_type = "gpt2",
        .part = "cross",
        .block = &kGpt2Cross,
        .keys = &kGptKeys,
        .defaults = {.d_model = 768, .heads = 12, .layers = 12},
        .pre_norm = PreNormRule{.name = "ln_cross_attn", .epsilon_key = "layer_norm_epsilon"},
        .adjust = AdjustGpt2,
    },
    {
        .model_type = "gpt_bigcode",
        .block = &kBigCode,
        .keys = &kGptKeys,
        .defaults = {.d_model = 768, .heads = 12, .layers = 12},
        .mask = MaskRule::kCausal,
        .pre_norm = kLn1,
        .adjust = AdjustBigCode,
    },
    {
        .model_type = "gpt_neo",
        .block = &kNeo,
        .keys = &kNeoKeys,
        .defaults = {.d_model = 2048, .heads = 16, .layers = 24},
        .mask = MaskRule::kCausal,
        .pre_norm = kLn1,
        .scale = {.kind = ScaleRule::Kind::kOne},
        .adjust = AdjustNeo,
    },
    {
        .model_type = "gptj",
        .block = &kGptj,
        .keys = &kGptKeys,
        .defaults = {.d_model = 4096, .heads = 16, .layers = 28},
        .mask = MaskRule::kCausal,
        .pre_norm = kLn1,
        .adjust = AdjustGptj,
    },
    {
        .model_type = "gpt_neox",
        .block = &kNeox,
        .keys = &kPlainKeys,
        .defaults = {.d_model = 6144, .heads = 64, .layers = 44},
        .mask = MaskRule::kCausal,
        .biases = {"attention_bias", true},
        .rope = RopeRule{.base_keys = kNeoxBase, .share_key = "rotary_pct", .share_absent = 0.25},
        .pre_norm = PreNormRule{.name = "input_layernorm", .epsilon_key = "layer_norm_eps"},
    },
    {
        .model_type = "opt",
        .block = &kOpt,
        .keys = &kPlainKeys,
        .defaults = {.d_model = 768, .heads = 12, .layers = 12},
        .mask = MaskRule::kCausal,
        .biases = {"enable_bias", true},
        .pre_norm = kOptNorm,
    },
    {
        .model_type = "xglm",
        .block = &kXglm,
        .keys = &kXglmKeys,
        .defaults = {.d_model = 1024, .heads = 16, .layers = 24},
        .mask = MaskRule::kCausal,
        .biases = {"", true},
        .pre_norm = kSelfNorm,
    },
};

}  // namespace

absl::Span<const Family> GptFamilies() { return kFamilies; }

}  // namespace headwise
