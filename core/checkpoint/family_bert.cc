// SPDX-License-Identifier: Apache-2.0
// BERT and the encoders that kept its module layout.
#include "core/checkpoint/family.h"

namespace headwise {
namespace {

constexpr RoleName kTensors[] = {
    {TensorRole::kQWeight, "self.query.weight"}, {TensorRole::kKWeight, "self.key.weight"},
    {TensorRole::kVWeight, "self.value.weight"}, {TensorRole::kOWeight, "output.dense.weight"},
    {TensorRole::kQBias, "self.query.bias"},     {TensorRole::kKBias, "self.key.bias"},
    {TensorRole::kVBias, "self.value.bias"},     {TensorRole::kOBias, "output.dense.bias"},
};
constexpr absl::string_view kIgnored[] = {
    "output.LayerNorm.weight", "output.LayerNorm.bias", "output.LayerNorm.gamma",
    "output.LayerNorm.beta",  // in old files
};

constexpr absl::string_view kEnters =
    "the hidden states that enter the block: the embeddings' or the previous block's output, after "
    "its LayerNorm (post-norm)";
constexpr absl::string_view kLeaves =
    "attention.output.dense with its bias, before the residual and attention.output.LayerNorm";

constexpr BlockLayout kBlock = {
    .head = "encoder.layer.",
    .tail = ".attention",
    .tensors = kTensors,
    .ignored = kIgnored,
    .x_enters = kEnters,
    .y_leaves = kLeaves,
};

// The second attention of a decoder of this layout.
constexpr BlockLayout kCross = {
    .head = "encoder.layer.",
    .tail = ".crossattention",
    .tensors = kTensors,
    .ignored = kIgnored,
    .x_enters = "the output of the block's self-attention after attention.output.LayerNorm",
    .y_leaves =
        "crossattention.output.dense with its bias, before the residual and "
        "crossattention.output.LayerNorm",
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
      .defaults = {.d_model = d_model, .heads = heads, .layers = 12},
      .fixed = kFixed,
      .mask = MaskRule::kCausalIfDecoder,
  };
}

constexpr Family Cross(absl::string_view model_type, int64_t d_model, int64_t heads) {
  Family row = Row(model_type, d_model, heads);
  row.part = "cross";
  row.block = &kCross;
  row.mask = MaskRule::kNone;
  return row;
}

constexpr Family kFamilies[] = {
    Row("bert", 768, 12),      Cross("bert", 768, 12),      Row("roberta", 768, 12),
    Cross("roberta", 768, 12), Row("xlm-roberta", 768, 12), Cross("xlm-roberta", 768, 12),
    Row("camembert", 768, 12), Cross("camembert", 768, 12), Row("electra", 256, 4),
    Cross("electra", 256, 4),
};

}  // namespace

absl::Span<const Family> BertFamilies() { return kFamilies; }

}  // namespace headwise
