// SPDX-License-Identifier: Apache-2.0
// BERT and the encoders that kept its module layout.
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

constexpr RoleName kWeights[] = {
    {TensorRole::kQWeight, "self.query.weight"},
    {TensorRole::kKWeight, "self.key.weight"},
    {TensorRole::kVWeight, "self.value.weight"},
    {TensorRole::kOWeight, "output.dense.weight"},
};
constexpr RoleName kBiases[] = {
    {TensorRole::kQBias, "self.query.bias"},
    {TensorRole::kKBias, "self.key.bias"},
    {TensorRole::kVBias, "self.value.bias"},
    {TensorRole::kOBias, "output.dense.bias"},
};
constexpr absl::string_view kIgnored[] = {
    "output.LayerNorm.weight", "output.LayerNorm.bias", "output.LayerNorm.gamma",
    "output.LayerNorm.beta",  // in old files
};

constexpr BlockLayout kBlock = {
    .head = "encoder.layer.",
    .tail = ".attention",
    .orientation = Orientation::kOutIn,
    .fused_layout = FusedLayout::kSeparate,
    .weights = kWeights,
    .biases = kBiases,
    .ignored = kIgnored,
    .x_enters =
        "the hidden states that enter the block: the embeddings' or the previous block's "
        "output, after its LayerNorm (post-norm)",
    .y_leaves =
        "attention.output.dense with its bias, before the residual and "
        "attention.output.LayerNorm",
};

constexpr absl::string_view kHiddenSize[] = {"hidden_size"};
constexpr absl::string_view kHeads[] = {"num_attention_heads"};
constexpr absl::string_view kLayers[] = {"num_hidden_layers"};
constexpr SizeKeys kKeys = {kHiddenSize, kHeads, {}, {}, kLayers};

constexpr FixedSetting kFixed[] = {
    {"position_embedding_type", "\"absolute\""},
    {"pruned_heads", "{}"},
};

constexpr Family Row(absl::string_view model_type, int64_t d_model, int64_t heads) {
  return {
      .model_type = model_type,
      .block = &kBlock,
      .keys = &kKeys,
      .defaults = {d_model, heads, std::nullopt, 12},
      .fixed = kFixed,
      .mask = MaskRule::kCausalIfDecoder,
      .window = std::nullopt,
      .bias_key = "",
      .biases_if_no_key = true,
      .rope = std::nullopt,
      .rope_base_if_absent = 0.0,
  };
}

constexpr Family kFamilies[] = {
    Row("bert", 768, 12),      Row("roberta", 768, 12), Row("xlm-roberta", 768, 12),
    Row("camembert", 768, 12), Row("electra", 256, 4),
};

}  // namespace

absl::Span<const Family> BertFamilies() { return kFamilies; }

}  // namespace headwise
