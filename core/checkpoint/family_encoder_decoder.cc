// SPDX-License-Identifier: Apache-2.0
// Models of an encoder and a decoder: BART and those with its names, Whisper, T5.
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

constexpr RoleName kBartTensors[] = {
    {TensorRole::kQWeight, "q_proj.weight"}, {TensorRole::kKWeight, "k_proj.weight"},
    {TensorRole::kVWeight, "v_proj.weight"}, {TensorRole::kOWeight, "out_proj.weight"},
    {TensorRole::kQBias, "q_proj.bias"},     {TensorRole::kVBias, "v_proj.bias"},
    {TensorRole::kOBias, "out_proj.bias"},
};
constexpr RoleName kBartBiases[] = {{TensorRole::kKBias, "k_proj.bias"}};  // not Whisper's

constexpr BlockLayout Bart(absl::string_view head, absl::string_view tail,
                           absl::string_view y_leaves) {
  return {
      .head = head,
      .tail = tail,
      .tensors = kBartTensors,
      .biases = kBartBiases,
      .x_enters =
          "the hidden states that enter the q projection: after the LayerNorm before it "
          "where the model has one (pre-norm)",
      .y_leaves = y_leaves,
  };
}

constexpr absl::string_view kSelfLeaves = "self_attn.out_proj with its bias, before the residual";
constexpr BlockLayout kBartEncoder = Bart("encoder.layers.", ".self_attn", kSelfLeaves);
constexpr BlockLayout kBartDecoder = Bart("decoder.layers.", ".self_attn", kSelfLeaves);
constexpr BlockLayout kBartCross = Bart("decoder.layers.", ".encoder_attn",
                                        "encoder_attn.out_proj with its bias, before the residual");

constexpr absl::string_view kDModel[] = {"d_model", "hidden_size"};
constexpr absl::string_view kEncoderHeads[] = {"encoder_attention_heads"};
constexpr absl::string_view kDecoderHeads[] = {"decoder_attention_heads"};
constexpr absl::string_view kEncoderLayers[] = {"encoder_layers"};
constexpr absl::string_view kDecoderLayers[] = {"decoder_layers"};
constexpr SizeKeys kEncoderKeys = {kDModel, kEncoderHeads, {}, {}, kEncoderLayers};
constexpr SizeKeys kDecoderKeys = {kDModel, kDecoderHeads, {}, {}, kDecoderLayers};

struct BartSizes {
  int64_t d_model, heads, layers;
  bool k_bias;
  bool pre_norm;  // its LayerNorms leave epsilon to torch
};
constexpr BartSizes kLarge = {1024, 16, 12, true, false};
constexpr BartSizes kLargePreNorm = {1024, 16, 12, true, true};
constexpr BartSizes kWhisper = {384, 6, 4, false, true};

constexpr Family BartPart(absl::string_view model_type, absl::string_view part,
                          const BartSizes& sizes) {
  Family row = {
      .model_type = model_type,
      .part = part,
      .block = &kBartEncoder,
      .keys = &kEncoderKeys,
      .defaults = {.d_model = sizes.d_model, .heads = sizes.heads, .layers = sizes.layers},
      .biases = {"", sizes.k_bias},
  };
  if (sizes.pre_norm) {
    row.pre_norm =
        PreNormRule{.name = part == "cross" ? "encoder_attn_layer_norm" : "self_attn_layer_norm"};
  }
  if (part == "encoder") return row;
  row.keys = &kDecoderKeys;
  row.block = part == "cross" ? &kBartCross : &kBartDecoder;
  row.mask = part == "cross" ? MaskRule::kNone : MaskRule::kCausal;
  return row;
}

constexpr RoleName kT5Tensors[] = {
    {TensorRole::kQWeight, "q.weight"},
    {TensorRole::kKWeight, "k.weight"},
    {TensorRole::kVWeight, "v.weight"},
    {TensorRole::kOWeight, "o.weight"},
};
constexpr RoleName kT5EncoderTable[] = {
    {TensorRole::kPositionBias,
     "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}};
constexpr RoleName kT5DecoderTable[] = {
    {TensorRole::kPositionBias,
     "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}};
constexpr absl::string_view kT5CrossIgnored[] = {
    "relative_attention_bias.weight"};  // unused, in some files

constexpr absl::string_view kT5Enters =
    "the residual stream after the sub-layer's layer_norm (RMSNorm, pre-norm)";
constexpr BlockLayout kT5Encoder = {
    .head = "encoder.block.",
    .tail = ".layer.0.SelfAttention",
    .tensors = kT5Tensors,
    .shared = kT5EncoderTable,
    .x_enters = kT5Enters,
    .y_leaves = "SelfAttention.o, before the residual",
};
constexpr BlockLayout kT5Decoder = {
    .head = "decoder.block.",
    .tail = ".layer.0.SelfAttention",
    .tensors = kT5Tensors,
    .shared = kT5DecoderTable,
    .x_enters = kT5Enters,
    .y_leaves = "SelfAttention.o, before the residual",
};
constexpr BlockLayout kT5Cross = {
    .head = "decoder.block.",
    .tail = ".layer.1.EncDecAttention",
    .tensors = kT5Tensors,
    .ignored = kT5CrossIgnored,
    .x_enters = kT5Enters,
    .y_leaves = "EncDecAttention.o, before the residual",
};

constexpr absl::string_view kT5Heads[] = {"num_heads", "num_attention_heads"};
constexpr absl::string_view kT5HeadDim[] = {"d_kv"};
constexpr absl::string_view kT5Layers[] = {"num_layers", "num_hidden_layers"};
constexpr absl::string_view kT5DecoderLayers[] = {"num_decoder_layers", "num_layers",
                                                  "num_hidden_layers"};
constexpr SizeKeys kT5Keys = {kDModel, kT5Heads, {}, kT5HeadDim, kT5Layers};
constexpr SizeKeys kT5DecoderKeys = {kDModel, kT5Heads, {}, kT5HeadDim, kT5DecoderLayers};

absl::Status AddBuckets(const ConfigObject& config, bool bidirectional, LayerSpec* spec) {
  constexpr absl::string_view kBuckets[] = {"relative_attention_num_buckets"};
  constexpr absl::string_view kDistance[] = {"relative_attention_max_distance"};
  const absl::StatusOr<int64_t> buckets = config.PositiveInt(kBuckets, 32);
  if (!buckets.ok()) return buckets.status();
  const absl::StatusOr<int64_t> distance = config.PositiveInt(kDistance, 128);
  if (!distance.ok()) return distance.status();
  PositionBiasSpec& bias = spec->position_bias.emplace();
  bias.kind = PositionBiasKind::kT5Buckets;
  bias.buckets = *buckets;
  bias.max_distance = *distance;
  bias.bidirectional = bidirectional;
  return absl::OkStatus();
}

absl::Status T5EncoderBias(const ConfigObject& config, int64_t, LayerSpec* spec) {
  return AddBuckets(config, true, spec);
}

absl::Status T5DecoderBias(const ConfigObject& config, int64_t, LayerSpec* spec) {
  return AddBuckets(config, false, spec);
}

constexpr Family T5Part(absl::string_view model_type, absl::string_view part, int64_t heads,
                        int64_t layers) {
  Family row = {
      .model_type = model_type,
      .part = part,
      .block = &kT5Encoder,
      .keys = &kT5Keys,
      .defaults = {.d_model = 512, .heads = heads, .layers = layers, .head_dim = 64},
      .pre_norm = PreNormRule{.name = part == "cross" ? "layer.1.layer_norm" : "layer.0.layer_norm",
                              .kind = NormKind::kRms,
                              .epsilon_key = "layer_norm_epsilon",
                              .epsilon_absent = 1e-6},
      .scale = {.kind = ScaleRule::Kind::kOne},
      .adjust = T5EncoderBias,
  };
  if (part == "encoder") return row;
  row.keys = &kT5DecoderKeys;
  row.block = part == "cross" ? &kT5Cross : &kT5Decoder;
  row.mask = part == "cross" ? MaskRule::kNone : MaskRule::kCausal;
  row.adjust = part == "cross" ? nullptr : T5DecoderBias;
  return row;
}

constexpr Family kFamilies[] = {
    BartPart("bart", "encoder", kLarge),
    BartPart("bart", "decoder", kLarge),
    BartPart("bart", "cross", kLarge),
    BartPart("mbart", "encoder", kLargePreNorm),
    BartPart("mbart", "decoder", kLargePreNorm),
    BartPart("mbart", "cross", kLargePreNorm),
    BartPart("marian", "encoder", kLarge),
    BartPart("marian", "decoder", kLarge),
    BartPart("marian", "cross", kLarge),
    BartPart("pegasus", "encoder", kLargePreNorm),
    BartPart("pegasus", "decoder", kLargePreNorm),
    BartPart("pegasus", "cross", kLargePreNorm),
    BartPart("m2m_100", "encoder", kLargePreNorm),
    BartPart("m2m_100", "decoder", kLargePreNorm),
    BartPart("m2m_100", "cross", kLargePreNorm),
    BartPart("whisper", "encoder", kWhisper),
    BartPart("whisper", "decoder", kWhisper),
    BartPart("whisper", "cross", kWhisper),
    T5Part("t5", "encoder", 8, 6),
    T5Part("t5", "decoder", 8, 6),
    T5Part("t5", "cross", 8, 6),
    T5Part("mt5", "encoder", 6, 8),
    T5Part("mt5", "decoder", 6, 8),
    T5Part("mt5", "cross", 6, 8),
};

}  // namespace

absl::Span<const Family> EncoderDecoderFamilies() { return kFamilies; }

}  // namespace headwise
