// SPDX-License-Identifier: Apache-2.0
// The norm before the attention: which families have one, and what is kept of it.
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/golden_layer.h"
#include "tests/support/plan_helper.h"

namespace headwise {
namespace {

constexpr char kNone[] = "none";

// "KIND EPSILON NAMES", names after the part that all of a block's have; "none".
std::string PreNormOf(const LayerPlan& plan) {
  if (!plan.spec.pre_norm.has_value()) return kNone;
  constexpr const char* kKinds[] = {"RMS", "RMS_PLUS_ONE", "LAYER_NORM"};
  std::string text = absl::StrCat(kKinds[static_cast<int>(plan.spec.pre_norm->kind)], " ",
                                  plan.spec.pre_norm->epsilon);
  for (const TensorUse& use : plan.tensors) {
    if (use.role != TensorRole::kPreNorm && use.role != TensorRole::kPreNormBias) continue;
    size_t shared = 0;
    while (use.name[shared] == plan.source.prefix[shared]) ++shared;
    shared = use.name.rfind('.', shared) + 1;
    absl::StrAppend(&text, " ", use.name.substr(shared));
  }
  return text;
}

// By folder, and by folder and layer where layers differ.
std::string GoldenPreNorm(const GoldenLayer& layer) {
  static const auto* const kNorms = new std::map<std::string, std::string>{
      {"albert_groups", kNone},
      {"bart_encoder_decoder_cross", kNone},
      {"bert", kNone},
      {"bloom_alibi", "LAYER_NORM 1e-05 input_layernorm.weight input_layernorm.bias"},
      {"clip_text_vision", "LAYER_NORM 1e-05 layer_norm1.weight layer_norm1.bias"},
      {"cohere_qknorm", "LAYER_NORM 1e-05 input_layernorm.weight"},
      {"distilbert", kNone},
      {"falcon_7b_mqa", "LAYER_NORM 1e-05 input_layernorm.weight input_layernorm.bias"},
      {"falcon_new_gqa", "LAYER_NORM 1e-05 ln_attn.weight ln_attn.bias"},
      {"gemma2_softcap_alternating", "RMS_PLUS_ONE 1e-06 input_layernorm.weight"},
      {"gemma3_text_two_bases", "RMS_PLUS_ONE 1e-06 input_layernorm.weight"},
      {"gpt2", "LAYER_NORM 1e-05 ln_1.weight ln_1.bias"},
      {"gpt_bigcode_mqa", "LAYER_NORM 1e-05 ln_1.weight ln_1.bias"},
      {"gpt_neo_local", "LAYER_NORM 1e-05 ln_1.weight ln_1.bias"},
      {"gpt_neox_partial", "LAYER_NORM 1e-05 input_layernorm.weight input_layernorm.bias"},
      {"gpt_oss_sinks", "RMS 1e-05 input_layernorm.weight"},
      {"gptj", "LAYER_NORM 1e-05 ln_1.weight ln_1.bias"},
      {"llama_gqa_llama3rope", "RMS 1e-06 input_layernorm.weight"},
      {"llama_linear_positions", "RMS 1e-06 input_layernorm.weight"},
      {"mistral_window", "RMS 1e-06 input_layernorm.weight"},
      {"modernbert_local_global", "LAYER_NORM 1e-05 attn_norm.weight"},
      {"modernbert_local_global 0", kNone},
      {"mpt_alibi_clip", "LAYER_NORM 1e-05 norm_1.weight"},
      {"opt", "LAYER_NORM 1e-05 self_attn_layer_norm.weight self_attn_layer_norm.bias"},
      {"phi3_fused_partial", "RMS 1e-05 input_layernorm.weight"},
      {"phi_qk_layernorm", "LAYER_NORM 1e-05 input_layernorm.weight input_layernorm.bias"},
      {"qwen2_window_from_layer", "RMS 1e-06 input_layernorm.weight"},
      {"qwen3_qknorm", "RMS 1e-06 input_layernorm.weight"},
      {"roberta", kNone},
      {"t5_relative_bias", "RMS 1e-06 layer_norm.weight"},
      {"vit", "LAYER_NORM 1e-12 layernorm_before.weight layernorm_before.bias"},
      {"whisper_encoder", "LAYER_NORM 1e-05 self_attn_layer_norm.weight self_attn_layer_norm.bias"},
      {"whisper_encoder cross.0",
       "LAYER_NORM 1e-05 encoder_attn_layer_norm.weight encoder_attn_layer_norm.bias"},
  };
  for (const std::string& key : {absl::StrCat(layer.folder, " ", layer.id), layer.folder}) {
    if (const auto found = kNorms->find(key); found != kNorms->end()) return found->second;
  }
  return "not listed";
}

class GoldenPreNorms : public ::testing::TestWithParam<GoldenLayer> {};

TEST_P(GoldenPreNorms, AreKept) {
  const LayerPlan plan = PlanGolden(GetParam());
  EXPECT_EQ(PreNormOf(plan), GoldenPreNorm(GetParam()));
  const TestLayer layer = LoadGolden(GetParam());
  const size_t width = static_cast<size_t>(layer.spec.d_model);
  EXPECT_EQ(layer.matrices.pre_norm.size(), plan.spec.pre_norm.has_value() ? width : 0);
  EXPECT_LE(layer.matrices.pre_norm_bias.size(), layer.matrices.pre_norm.size());
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenPreNorms, ::testing::ValuesIn(GoldenLayers()),
                         [](const auto& layer) { return GoldenName(layer.param); });

StoredTensors WithNorm(const NamedShapes& norm, const std::string& prefix = "model.") {
  StoredTensors stored = LlamaBlocks(4, 4, {}, prefix);
  AddTensors(&stored, prefix + "layers.0.", norm);
  return stored;
}

std::string Planned(const std::string& config, const StoredTensors& stored) {
  return PreNormOf(PlanOrFail(config, "0", stored));
}

TEST(PreNorm, IsKeptUnderAnyPrefixAndOnlyWhereItIs) {
  const NamedShapes weight = {{"input_layernorm.weight", {16}}};
  for (const char* prefix : {"", "model.", "a.b."}) {
    EXPECT_EQ(Planned(LlamaBlocksConfig("llama"), WithNorm(weight, prefix)),
              "RMS 1e-06 input_layernorm.weight");
  }
  const LayerPlan other = PlanOrFail(LlamaBlocksConfig("llama"), "1", WithNorm(weight));
  EXPECT_EQ(PreNormOf(other), kNone);
  EXPECT_EQ(RolesOf(other), "Q_WEIGHT K_WEIGHT V_WEIGHT O_WEIGHT");
  EXPECT_EQ(Planned(LlamaBlocksConfig("llama", R"(,"rms_norm_eps":1e-3)"), WithNorm(weight)),
            "RMS 0.001 input_layernorm.weight");
  EXPECT_EQ(Planned(LlamaBlocksConfig("starcoder2", R"(,"use_bias":false)"),
                    WithNorm({{"input_layernorm.weight", {16}}, {"input_layernorm.bias", {16}}})),
            "LAYER_NORM 1e-05 input_layernorm.weight input_layernorm.bias");
  // A bias alone is no norm.
  EXPECT_EQ(Planned(LlamaBlocksConfig("starcoder2", R"(,"use_bias":false)"),
                    WithNorm({{"input_layernorm.bias", {16}}})),
            kNone);
}

TEST(PreNorm, OfAShardThatCannotBeReadIsLeftOut) {
  StoredTensors stored = WithNorm({{"input_layernorm.weight", {}}});
  stored.back().problem = "shard 2 is missing";
  EXPECT_EQ(Planned(LlamaBlocksConfig("llama"), stored), kNone);
  stored = WithNorm({{"input_layernorm.weight", {16}}, {"input_layernorm.bias", {}}});
  stored.back().problem = "shard 2 is missing";
  EXPECT_EQ(Planned(LlamaBlocksConfig("starcoder2", R"(,"use_bias":false)"), stored), kNone);
}

TEST(PreNorm, OfAnotherShapeIsRefused) {
  ExpectPlanRefused(LlamaBlocksConfig("llama"), "0", WithNorm({{"input_layernorm.weight", {15}}}),
                    absl::StatusCode::kDataLoss,
                    "tensor \"model.layers.0.input_layernorm.weight\": shape must be [16]");
  ExpectPlanRefused(LlamaBlocksConfig("llama", R"(,"rms_norm_eps":"small")"), "0",
                    WithNorm({{"input_layernorm.weight", {16}}}), absl::StatusCode::kDataLoss,
                    "rms_norm_eps");
}

TEST(PreNorm, IsNotTheOneBehindTheAttention) {
  const std::string block = "model.decoder.layers.0.";
  StoredTensors stored;
  for (const char* part : {"q", "k", "v", "out"}) {
    AddTensors(&stored, absl::StrCat(block, "self_attn.", part, "_proj."),
               {{"weight", {16, 16}}, {"bias", {16}}});
  }
  AddTensors(&stored, block + "self_attn_layer_norm.", {{"weight", {16}}, {"bias", {16}}});
  EXPECT_EQ(Planned(LlamaBlocksConfig("opt"), stored),
            "LAYER_NORM 1e-05 self_attn_layer_norm.weight self_attn_layer_norm.bias");
  EXPECT_EQ(Planned(LlamaBlocksConfig("opt", R"(,"do_layer_norm_before":false)"), stored), kNone);
}

}  // namespace
}  // namespace headwise
