// SPDX-License-Identifier: Apache-2.0
// Settings of LLaMA-like families that the golden checkpoints leave out, RoPE among them.
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/family.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/plan_helper.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;

TEST(Families, UnknownOnesAreRefusedByName) {
  for (const char* model_type : {"deberta-v2", "mpnet", "nomic_bert", "olmo", "internlm2", "qwen",
                                 "xlnet", "deepseek_v3", "codegen", "umt5", "smollm3", "cohere2"}) {
    ExpectPlanRefused(LlamaBlocksConfig(model_type), "0", LlamaBlocks(),
                      absl::StatusCode::kUnimplemented, model_type);
  }
}

TEST(Families, EachNamesItsBlocksApart) {
  // Rows of one model_type differ in their part, and each says where x and y are.
  for (const char* model_type : {"bert",
                                 "roberta",
                                 "xlm-roberta",
                                 "camembert",
                                 "electra",
                                 "distilbert",
                                 "albert",
                                 "modernbert",
                                 "vit",
                                 "deit",
                                 "clip",
                                 "gpt2",
                                 "gpt_neo",
                                 "gptj",
                                 "gpt_neox",
                                 "gpt_bigcode",
                                 "opt",
                                 "xglm",
                                 "bloom",
                                 "mpt",
                                 "falcon",
                                 "RefinedWeb",
                                 "RefinedWebModel",
                                 "llama",
                                 "mistral",
                                 "mixtral",
                                 "qwen2",
                                 "qwen3",
                                 "gemma",
                                 "gemma2",
                                 "gemma3_text",
                                 "gemma3",
                                 "phi",
                                 "phi3",
                                 "gpt_oss",
                                 "cohere",
                                 "olmo2",
                                 "stablelm",
                                 "starcoder2",
                                 "granite",
                                 "t5",
                                 "mt5",
                                 "whisper",
                                 "bart",
                                 "mbart",
                                 "marian",
                                 "pegasus",
                                 "m2m_100"}) {
    std::vector<absl::string_view> parts;
    for (const Family* family : FindFamilies(model_type)) {
      EXPECT_FALSE(family->block->x_enters.empty() || family->block->y_leaves.empty());
      parts.push_back(family->part);
    }
    EXPECT_FALSE(parts.empty()) << model_type;
    EXPECT_EQ(std::set<absl::string_view>(parts.begin(), parts.end()).size(), parts.size());
  }
}

TEST(Families, AlibiSlopesOfAnyNumberOfHeads) {
  EXPECT_THAT(AlibiSlopes(1, 8.0), ElementsAre(0x1p-8f));
  EXPECT_THAT(AlibiSlopes(6, 8.0), ElementsAre(0.25f, 0.0625f, 0x1p-6f, 0x1p-8f, 0.5f, 0.125f));
  EXPECT_THAT(AlibiSlopes(2, 4.0), ElementsAre(0.25f, 0.0625f));
}

TEST(PlanQwen, WindowsFromALayerOnAndOnlyIfUsed) {
  const NamedShapes biases = {{"q_proj.bias", {16}}, {"k_proj.bias", {16}}, {"v_proj.bias", {16}}};
  const auto window = [&](const char* more, const char* layer) {
    return PlanOrFail(LlamaBlocksConfig("qwen2", more), layer, LlamaBlocks(4, 4, biases))
        .spec.mask.window;
  };
  EXPECT_EQ(window(R"(,"sliding_window":3,"max_window_layers":2)", "5"), std::nullopt);
  constexpr char kUsed[] = R"(,"sliding_window":3,"max_window_layers":2,"use_sliding_window":true)";
  EXPECT_EQ(window(kUsed, "1"), std::nullopt);
  EXPECT_EQ(window(kUsed, "2"), 3);
  EXPECT_EQ(window(R"(,"max_window_layers":0,"use_sliding_window":true)", "0"), 4096);
  EXPECT_EQ(RolesOf(PlanOrFail(LlamaBlocksConfig("qwen2"), "0", LlamaBlocks(4, 4, biases))),
            "Q_WEIGHT K_WEIGHT V_WEIGHT O_WEIGHT Q_BIAS K_BIAS V_BIAS");
  ExpectPlanRefused(LlamaBlocksConfig("qwen2"), "0", LlamaBlocks(), absl::StatusCode::kNotFound,
                    "q_proj.bias");
}

TEST(PlanGemma, AbsentHeadWidthIsTheClassesUnlessTheTensorsSayOtherwise) {
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("gemma"), "0", LlamaBlocks(4, 256)).spec.dk.front(), 256);
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("gemma"), "0", LlamaBlocks(4, 4)).spec.dk.front(), 4);
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("gemma", R"(,"head_dim":6)"), "0", LlamaBlocks(4, 6))
                .spec.dk.front(),
            6);
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("gemma", R"(,"head_dim":null)"), "0", LlamaBlocks())
                .spec.dk.front(),
            4);
}

TEST(PlanGemma, SecondAlternatesAndCaps) {
  const auto spec = [](const char* more, const char* layer) {
    return PlanOrFail(LlamaBlocksConfig("gemma2", more), layer, LlamaBlocks()).spec;
  };
  EXPECT_EQ(spec("", "0").mask.window, 4096);
  EXPECT_EQ(spec("", "1").mask.window, std::nullopt);
  EXPECT_EQ(spec("", "0").softcap, 50.0);
  EXPECT_EQ(spec(R"(,"attn_logit_softcapping":null)", "0").softcap, std::nullopt);
  EXPECT_EQ(spec("", "0").scale, 1.0 / 16.0);
  ExpectPlanRefused(LlamaBlocksConfig("gemma2", R"(,"attn_logit_softcapping":0)"), "0",
                    LlamaBlocks(), absl::StatusCode::kDataLoss, "softcap");
}

TEST(PlanGemma, ThirdHasTwoBasesAndAPattern) {
  const NamedShapes norms = {{"q_norm.weight", {4}}, {"k_norm.weight", {4}}};
  const auto spec = [&](const char* more, const char* layer) {
    return PlanOrFail(LlamaBlocksConfig("gemma3_text", more), layer, LlamaBlocks(4, 4, norms)).spec;
  };
  constexpr char kScaled[] = R"(,"rope_scaling":{"rope_type":"linear","factor":8.0})";
  EXPECT_EQ(spec(kScaled, "4").rope->base, 1e4);
  EXPECT_EQ(spec(kScaled, "4").rope->scaling, RopeScaling::kDefault);
  EXPECT_EQ(spec(kScaled, "5").rope->base, 1e6);
  EXPECT_EQ(spec(kScaled, "5").rope->scaling, RopeScaling::kLinear);
  EXPECT_EQ(spec(kScaled, "5").mask.window, std::nullopt);
  EXPECT_EQ(spec(R"(,"_sliding_window_pattern":2)", "1").rope->base, 1e6);
  EXPECT_EQ(spec(R"(,"attn_logit_softcapping":30.0)", "0").softcap, std::nullopt);
  ExpectPlanRefused(LlamaBlocksConfig("gemma3_text", R"(,"use_bidirectional_attention":true)"), "0",
                    LlamaBlocks(4, 4, norms), absl::StatusCode::kUnimplemented,
                    "use_bidirectional_attention");
}

TEST(PlanGemma, TheLanguageModelBesideAVisionTower) {
  const NamedShapes norms = {{"q_norm.weight", {4}}, {"k_norm.weight", {4}}};
  const std::string config =
      R"({"model_type":"gemma3","text_config":{"hidden_size":16,"num_attention_heads":4,)"
      R"("num_key_value_heads":4,"num_hidden_layers":8},"vision_config":{}})";
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    StoredTensors stored = LlamaBlocks(4, 4, norms, prefix);
    AddTensors(&stored, "vision_tower.vision_model.encoder.layers.0.self_attn.",
               {{"q_proj.weight", {8, 8}}, {"out_proj.weight", {8, 8}}});
    const LayerPlan plan = PlanOrFail(config, "text.5", stored);
    EXPECT_EQ(plan.source.prefix, absl::StrCat(prefix, "layers.5.self_attn"));
    EXPECT_EQ(plan.source.layer, "text.5");
    EXPECT_EQ(PlanOrFail(config, "5", stored).source.layer, "text.5");
    ExpectPlanRefused(config, "vision.0", stored, absl::StatusCode::kUnimplemented, "vision");
  }
}

TEST(PlanGptOss, ItsOwnScalingWhereTheFileSaysNothing) {
  const NamedShapes more = {{"q_proj.bias", {16}},
                            {"k_proj.bias", {16}},
                            {"v_proj.bias", {16}},
                            {"o_proj.bias", {16}},
                            {"sinks", {4}}};
  const auto spec = [&](const char* settings, const char* layer) {
    return PlanOrFail(LlamaBlocksConfig("gpt_oss", settings), layer, LlamaBlocks(4, 4, more)).spec;
  };
  const LayerSpec silent = spec("", "0");
  EXPECT_EQ(silent.rope->base, 150000.0);
  EXPECT_EQ(silent.rope->scaling, RopeScaling::kYarn);
  EXPECT_EQ(silent.rope->factor, 32.0);
  EXPECT_EQ(silent.rope->original_max_positions, 4096.0);
  EXPECT_FALSE(silent.rope->truncate);
  EXPECT_TRUE(silent.sinks);
  EXPECT_EQ(silent.mask.window, 128);
  EXPECT_EQ(spec("", "1").mask.window, std::nullopt);
  EXPECT_EQ(spec(R"(,"rope_scaling":null)", "0").rope->scaling, RopeScaling::kDefault);
}

RopeSpec Rope(const char* more, const char* model_type = "llama") {
  return *PlanOrFail(LlamaBlocksConfig(model_type, more), "0", LlamaBlocks()).spec.rope;
}

TEST(PlanRope, Scalings) {
  EXPECT_EQ(Rope(R"(,"rope_scaling":{"type":"linear","factor":4})").factor, 4.0);
  const RopeSpec dynamic =
      Rope(R"(,"max_position_embeddings":64,"rope_scaling":{"type":"dynamic","factor":2.0})");
  EXPECT_EQ(dynamic.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(dynamic.original_max_positions, 64.0);
  const RopeSpec llama3 =
      Rope(R"(,"max_position_embeddings":64,"rope_scaling":{"rope_type":"llama3","factor":8.0,)"
           R"("low_freq_factor":1.0,"high_freq_factor":4.0})");
  EXPECT_EQ(llama3.high_freq_factor, 4.0);
  EXPECT_EQ(llama3.original_max_positions, 64.0);
  for (const char* text :
       {R"({"type":"linear"})", R"({"type":"dynamic","factor":null})",
        R"({"rope_type":"llama3","factor":8,"low_freq_factor":1})", R"({"rope_type":"yarn"})",
        R"({"rope_type":"yarn","factor":"big"})",
        R"({"rope_type":"longrope","short_factor":[1,1]})",
        R"({"rope_type":"longrope","short_factor":[1,1],"long_factor":[1]})",
        R"({"rope_type":"longrope","short_factor":[1,1],"long_factor":[1,0]})"}) {
    ExpectPlanRefused(LlamaBlocksConfig("llama", absl::StrCat(R"(,"rope_scaling":)", text)), "0",
                      LlamaBlocks(), absl::StatusCode::kDataLoss, "config.json: rope");
  }
}

TEST(PlanRope, YarnsTrainedLengthFactorAndAttention) {
  const RopeSpec plain =
      Rope(R"(,"max_position_embeddings":128,"rope_scaling":{"type":"yarn","factor":4.0,)"
           R"("original_max_position_embeddings":32,"beta_fast":null})");
  EXPECT_EQ(plain.original_max_positions, 32.0);
  EXPECT_EQ(plain.beta_fast, 32.0);
  EXPECT_TRUE(plain.truncate);
  EXPECT_FALSE(plain.attention_factor.has_value());
  const RopeSpec above =
      Rope(R"(,"max_position_embeddings":128,"original_max_position_embeddings":16,)"
           R"("rope_parameters":{"rope_type":"yarn","factor":null,)"
           R"("original_max_position_embeddings":32,"truncate":false})");
  EXPECT_EQ(above.original_max_positions, 16.0);
  EXPECT_EQ(above.factor, 8.0);
  EXPECT_FALSE(above.truncate);
  const RopeSpec scales =
      Rope(R"(,"rope_scaling":{"type":"yarn","factor":4.0,"mscale":2.0,"mscale_all_dim":1.0})");
  EXPECT_DOUBLE_EQ(*scales.attention_factor,
                   (0.2 * std::log(4.0) + 1.0) / (0.1 * std::log(4.0) + 1.0));
  EXPECT_EQ(*Rope(R"(,"rope_scaling":{"type":"yarn","factor":4,"attention_factor":1.5})")
                 .attention_factor,
            1.5);
}

TEST(PlanRope, Phi3CallsLongRopeByThreeNames) {
  StoredTensors stored;
  AddTensors(&stored, "model.layers.0.self_attn.",
             {{"qkv_proj.weight", {48, 16}}, {"o_proj.weight", {16, 16}}});
  for (const char* kind : {"su", "yarn", "longrope"}) {
    const RopeSpec rope =
        *PlanOrFail(LlamaBlocksConfig(
                        "phi3", absl::StrCat(R"(,"max_position_embeddings":128,)",
                                             R"("original_max_position_embeddings":32,)",
                                             R"("rope_scaling":{"type":")", kind,
                                             R"(","short_factor":[1,2],"long_factor":[3,4.5]})")),
                    "0", stored)
             .spec.rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kLongRope);
    EXPECT_EQ(rope.factor, 4.0);
    EXPECT_EQ(rope.original_max_positions, 32.0);
    EXPECT_THAT(rope.long_factors, ElementsAre(3.0, 4.5));
  }
}

TEST(PlanRope, BasesWhereNoKeyGivesThem) {
  EXPECT_EQ(Rope("", "mixtral").base, 1e6);
  EXPECT_EQ(Rope("", "cohere").base, 5e5);
  EXPECT_EQ(Rope("", "cohere").layout, RopeLayout::kInterleaved);
  EXPECT_EQ(Rope(R"(,"partial_rotary_factor":0.5)", "stablelm").dims, 2);
}

TEST(PlanStableLm, ATensorForEachHead) {
  NamedShapes norms;
  for (int64_t head = 0; head < 4; ++head) {
    norms.push_back({absl::StrCat("q_layernorm.norms.", head, ".weight"), {4}});
    if (head < 2) norms.push_back({absl::StrCat("k_layernorm.norms.", head, ".weight"), {4}});
  }
  const std::string config =
      R"({"model_type":"stablelm","hidden_size":16,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"qk_layernorm":true,"partial_rotary_factor":0.5})";
  const LayerPlan plan = PlanOrFail(config, "1", LlamaBlocks(2, 4, norms));
  ASSERT_EQ(plan.tensors.size(), 10u);
  EXPECT_EQ(plan.tensors[7].head, 3);
  EXPECT_EQ(plan.tensors[9].name, "model.layers.1.self_attn.k_layernorm.norms.1.weight");
  EXPECT_EQ(plan.spec.qk_norm->kind, NormKind::kLayerNorm);
  EXPECT_EQ(plan.spec.qk_norm->span, QkNormSpan::kHeads);
  norms.pop_back();
  ExpectPlanRefused(config, "1", LlamaBlocks(2, 4, norms), absl::StatusCode::kNotFound,
                    "q_layernorm.norms.3.weight");
}

TEST(PlanLlamaLike, NormsBiasesAndScales) {
  const NamedShapes wide = {{"q_norm.weight", {16}}, {"k_norm.weight", {16}}};
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("olmo2"), "0", LlamaBlocks(4, 4, wide)).spec.qk_norm->span,
            QkNormSpan::kWidth);
  const NamedShapes rows = {{"q_norm.weight", {4, 4}}, {"k_norm.weight", {4, 4}}};
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("cohere", R"(,"use_qk_norm":true)"), "0",
                       LlamaBlocks(4, 4, rows))
                .spec.qk_norm->span,
            QkNormSpan::kHeads);
  ExpectPlanRefused(LlamaBlocksConfig("cohere"), "0", LlamaBlocks(4, 4, rows),
                    absl::StatusCode::kDataLoss, "k_norm.weight");
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("granite"), "0", LlamaBlocks()).spec.scale, 1.0);
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("granite", R"(,"attention_multiplier":0.25)"), "0",
                       LlamaBlocks())
                .spec.scale,
            0.25);
  EXPECT_EQ(PlanOrFail(LlamaBlocksConfig("starcoder2", R"(,"use_bias":false,"sliding_window":5)"),
                       "3", LlamaBlocks())
                .spec.mask.window,
            5);
  ExpectPlanRefused(LlamaBlocksConfig("starcoder2"), "0", LlamaBlocks(),
                    absl::StatusCode::kNotFound, "q_proj.bias");
}

}  // namespace
}  // namespace headwise
