// SPDX-License-Identifier: Apache-2.0
// Settings of fused decoders, encoders and models of parts that the golden checkpoints leave out.
#include "absl/strings/str_cat.h"
#include "core/checkpoint/family.h"
#include "gtest/gtest.h"
#include "tests/support/plan_helper.h"

namespace headwise {
namespace {

StoredTensors Fused(const std::string& block, int64_t rows, bool biases) {
  StoredTensors stored;
  AddTensors(&stored, block, {{"query_key_value.weight", {rows, 16}}, {"dense.weight", {16, 16}}});
  if (biases) AddTensors(&stored, block, {{"query_key_value.bias", {rows}}, {"dense.bias", {16}}});
  return stored;
}

TEST(PlanFalcon, HeadsAndLayoutByConfig) {
  const auto spec = [](const char* model_type, const char* more, int64_t rows) {
    const std::string config =
        absl::StrCat(R"({"model_type":")", model_type,
                     R"(","hidden_size":16,"n_head":4,"n_layer":1)", more, "}");
    return PlanOrFail(config, "0", Fused("transformer.h.0.self_attention.", rows, false)).spec;
  };
  // Rows: (4 + 2 G) heads of width 4.
  EXPECT_EQ(spec("falcon", "", 24).kv_heads, 1);
  EXPECT_EQ(spec("falcon", "", 24).fused_layout, FusedLayout::kBlocks);
  EXPECT_EQ(spec("falcon", R"(,"multi_query":false)", 48).fused_layout, FusedLayout::kPerHead);
  const char grouped[] = R"(,"new_decoder_architecture":true,"num_kv_heads":2)";
  EXPECT_EQ(spec("falcon", grouped, 32).fused_layout, FusedLayout::kPerGroup);
  EXPECT_EQ(spec("falcon", grouped, 32).kv_heads, 2);
  EXPECT_EQ(spec("falcon", R"(,"new_decoder_architecture":true)", 48).kv_heads, 4);
  EXPECT_EQ(spec("RefinedWeb", R"(,"n_head_kv":2)", 32).fused_layout, FusedLayout::kPerGroup);
  EXPECT_EQ(spec("RefinedWeb", "", 24).kv_heads, 1);
  EXPECT_EQ(spec("RefinedWeb", R"(,"multi_query":false)", 48).kv_heads, 4);
  EXPECT_EQ(spec("RefinedWebModel", "", 24).fused_layout, FusedLayout::kBlocks);
}

TEST(PlanFalcon, AlibiTakesTheRopesPlace) {
  const LayerSpec spec =
      PlanOrFail(R"({"model_type":"falcon","hidden_size":16,"num_attention_heads":4,"alibi":true,)"
                 R"("bias":true,"multi_query":false})",
                 "0", Fused("h.0.self_attention.", 48, true))
          .spec;
  EXPECT_FALSE(spec.rope.has_value());
  ASSERT_TRUE(spec.position_bias.has_value());
  EXPECT_TRUE(spec.position_bias->scaled);
  EXPECT_TRUE(spec.position_bias->rounded_to_bf16);
  EXPECT_EQ(spec.position_bias->slopes, AlibiSlopes(4, 8.0));
}

TEST(PlanMpt, AttentionSettings) {
  StoredTensors stored;
  AddTensors(&stored, "transformer.blocks.0.attn.",
             {{"Wqkv.weight", {48, 16}}, {"out_proj.weight", {16, 16}}});
  const auto config = [](absl::string_view attention) {
    return absl::StrCat(R"({"model_type":"mpt","d_model":16,"n_heads":4,"n_layers":1,)",
                        R"("attn_config":)", attention, "}");
  };
  EXPECT_EQ(PlanOrFail(config(R"({"alibi_bias_max":4})"), "0", stored).spec.position_bias->slopes,
            AlibiSlopes(4, 4.0));
  const LayerSpec none =
      PlanOrFail(config(R"({"clip_qkv":null,"softmax_scale":null})"), "0", stored).spec;
  EXPECT_FALSE(none.clip.has_value() || none.scale.has_value());
  EXPECT_TRUE(PlanOrFail(config("null"), "0", stored).spec.position_bias.has_value());
  ExpectPlanRefused(config(R"({"alibi":false})"), "0", stored, absl::StatusCode::kUnimplemented,
                    "attn_config.alibi: not carried out by this release; was false");
  ExpectPlanRefused(config(R"({"qk_ln":true})"), "0", stored, absl::StatusCode::kUnimplemented,
                    "attn_config.qk_ln");
  ExpectPlanRefused(config(R"({"clip_qkv":-1.0})"), "0", stored, absl::StatusCode::kDataLoss,
                    "clip");
}

TEST(PlanGpt, Scales) {
  StoredTensors stored;
  AddTensors(&stored, "h.3.attn.",
             {{"c_attn.weight", {16, 48}},
              {"c_attn.bias", {48}},
              {"c_proj.weight", {16, 16}},
              {"c_proj.bias", {16}},
              {"bias", {1, 1, 8, 8}},
              {"masked_bias", {}}});
  const auto scale = [&](const char* more) {
    return PlanOrFail(absl::StrCat(R"({"model_type":"gpt2","n_embd":16,"n_head":4)", more, "}"),
                      "3", stored)
        .spec.head_scale(0);
  };
  EXPECT_EQ(scale(""), 0.5);
  EXPECT_EQ(scale(R"(,"scale_attn_weights":false)"), 1.0);
  EXPECT_EQ(scale(R"(,"scale_attn_by_inverse_layer_idx":true)"), 0.125);
  EXPECT_EQ(scale(R"(,"reorder_and_upcast_attn":true)"), 0.5);
}

TEST(PlanGpt, CrossAttentionHasKAndVInOne) {
  StoredTensors stored;
  AddTensors(&stored, "transformer.h.0.crossattention.",
             {{"c_attn.weight", {16, 32}},
              {"c_attn.bias", {32}},
              {"q_attn.weight", {16, 16}},
              {"q_attn.bias", {16}},
              {"c_proj.weight", {16, 16}},
              {"c_proj.bias", {16}}});
  const LayerPlan plan =
      PlanOrFail(R"({"model_type":"gpt2","n_embd":16,"n_head":4})", "cross.0", stored);
  EXPECT_EQ(RolesOf(plan), "Q_WEIGHT KV_WEIGHT O_WEIGHT Q_BIAS KV_BIAS O_BIAS");
  EXPECT_FALSE(plan.spec.mask.causal);
  EXPECT_EQ(plan.spec.orientation, Orientation::kInOut);
}

TEST(PlanGpt, BigCodeWithoutMultiQueryIsPerHead) {
  StoredTensors stored;
  AddTensors(&stored, "transformer.h.0.attn.",
             {{"c_attn.weight", {48, 16}},
              {"c_attn.bias", {48}},
              {"c_proj.weight", {16, 16}},
              {"c_proj.bias", {16}}});
  const LayerSpec spec =
      PlanOrFail(R"({"model_type":"gpt_bigcode","n_embd":16,"n_head":4,"multi_query":false})", "0",
                 stored)
          .spec;
  EXPECT_EQ(spec.fused_layout, FusedLayout::kPerHead);
  EXPECT_EQ(spec.kv_heads, 4);
}

StoredTensors OutProj(const std::string& block, const NamedShapes& more = {}) {
  StoredTensors stored;
  AddTensors(&stored, block,
             {{"q_proj.weight", {16, 16}},
              {"k_proj.weight", {16, 16}},
              {"v_proj.weight", {16, 16}},
              {"out_proj.weight", {16, 16}}});
  AddTensors(&stored, block, more);
  return stored;
}

TEST(PlanGpt, NeoLayerKinds) {
  const auto window = [](const char* more, const char* layer) {
    return PlanOrFail(
               absl::StrCat(R"({"model_type":"gpt_neo","hidden_size":16,"num_heads":4)", more, "}"),
               layer,
               OutProj(absl::StrCat("transformer.h.", layer, ".attn.attention."),
                       {{"out_proj.bias", {16}}}))
        .spec.mask.window;
  };
  EXPECT_EQ(window("", "0"), std::nullopt);
  EXPECT_EQ(window("", "1"), 256);
  constexpr char kTypes[] = R"(,"window_size":7,"attention_types":[[["local"],2],[["global"],1]])";
  EXPECT_EQ(window(kTypes, "1"), 7);
  EXPECT_EQ(window(kTypes, "2"), std::nullopt);
  ExpectPlanRefused(R"({"model_type":"gpt_neo","attention_types":[[["local"],2]]})", "2",
                    OutProj("h.2.attn.attention.", {{"out_proj.bias", {16}}}),
                    absl::StatusCode::kDataLoss, "attention_types");
  ExpectPlanRefused(R"({"model_type":"gpt_neo","attention_layers":["odd"]})", "0",
                    OutProj("h.0.attn.attention.", {{"out_proj.bias", {16}}}),
                    absl::StatusCode::kUnimplemented, "attention_layers[0]");
}

TEST(PlanGpt, JRotatesAsManyFeaturesAsItSays) {
  const auto dims = [](const char* more) {
    return PlanOrFail(absl::StrCat(R"({"model_type":"gptj","n_embd":16,"n_head":1)", more, "}"),
                      "0", OutProj("transformer.h.0.attn."))
        .spec.rope->dims;
  };
  EXPECT_EQ(dims(R"(,"rotary_dim":8)"), 8);
  EXPECT_EQ(dims(R"(,"rotary_dim":null)"), 16);
  ExpectPlanRefused(R"({"model_type":"gptj","n_embd":16,"n_head":1})", "0",
                    OutProj("transformer.h.0.attn."), absl::StatusCode::kDataLoss,
                    "rope.dims: must be even, at least 2 and at most dk (16); was 64");
}

TEST(PlanEncoders, ModernBertLayers) {
  StoredTensors stored;
  for (int64_t layer = 0; layer < 4; ++layer) {
    AddTensors(&stored, absl::StrCat("model.layers.", layer, ".attn."),
               {{"Wqkv.weight", {48, 16}}, {"Wo.weight", {16, 16}}});
  }
  const auto spec = [&](const char* more, const char* layer) {
    return PlanOrFail(LlamaBlocksConfig("modernbert", more), layer, stored).spec;
  };
  EXPECT_EQ(spec("", "0").rope->base, 160000.0);
  EXPECT_EQ(spec("", "0").mask.window, std::nullopt);
  EXPECT_EQ(spec("", "1").rope->base, 10000.0);
  EXPECT_EQ(spec("", "1").mask.window, 64);
  EXPECT_EQ(spec("", "3").mask.window, std::nullopt);
  EXPECT_EQ(spec(R"(,"local_rope_theta":null,"global_rope_theta":7.0)", "1").rope->base, 7.0);
  EXPECT_FALSE(spec("", "1").mask.causal);
}

TEST(PlanEncoders, AlbertRefusesInnerLayersItCannotTellApart) {
  ExpectPlanRefused(LlamaBlocksConfig("albert", R"(,"inner_group_num":2)"), "0", {},
                    absl::StatusCode::kNotFound, "albert_layer_groups.0.");
  StoredTensors stored;
  AddTensors(&stored, "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.",
             {{"query.weight", {16, 16}}});
  ExpectPlanRefused(LlamaBlocksConfig("albert", R"(,"inner_group_num":2)"), "0", stored,
                    absl::StatusCode::kUnimplemented, "inner_group_num");
}

TEST(PlanEncoders, VitWithoutQkvBiases) {
  StoredTensors stored;
  AddTensors(&stored, "encoder.layer.0.attention.",
             {{"attention.query.weight", {16, 16}},
              {"attention.key.weight", {16, 16}},
              {"attention.value.weight", {16, 16}},
              {"output.dense.weight", {16, 16}},
              {"output.dense.bias", {16}}});
  EXPECT_EQ(RolesOf(PlanOrFail(LlamaBlocksConfig("deit", R"(,"qkv_bias":false)"), "0", stored)),
            "Q_WEIGHT K_WEIGHT V_WEIGHT O_WEIGHT O_BIAS");
}

StoredTensors T5(const std::string& part, int64_t block, const std::string& tail,
                 const NamedShapes& more) {
  StoredTensors stored;
  const std::string name = absl::StrCat(part, ".block.", block, ".layer.", tail, ".");
  AddTensors(&stored, name,
             {{"q.weight", {12, 16}},
              {"k.weight", {12, 16}},
              {"v.weight", {12, 16}},
              {"o.weight", {16, 12}}});
  AddTensors(&stored, name, more);
  return stored;
}

TEST(PlanT5, PartsShareTheTableOfTheirFirstBlock) {
  const std::string config =
      R"({"model_type":"t5","d_model":16,"num_heads":4,"d_kv":3,"num_layers":2,)"
      R"("num_decoder_layers":null})";
  StoredTensors stored = T5("decoder", 1, "0.SelfAttention", {});
  ExpectPlanRefused(config, "decoder.1", stored, absl::StatusCode::kNotFound,
                    "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
  AddTensors(&stored, "decoder.block.0.layer.0.SelfAttention.",
             {{"relative_attention_bias.weight", {32, 4}}});
  const LayerPlan plan = PlanOrFail(config, "decoder.1", stored);
  EXPECT_EQ(plan.spec.scale, 1.0);
  EXPECT_EQ(plan.spec.position_bias->max_distance, 128);
  EXPECT_FALSE(plan.spec.position_bias->bidirectional);
  EXPECT_EQ(RolesOf(plan), "Q_WEIGHT K_WEIGHT V_WEIGHT O_WEIGHT POSITION_BIAS");
  const StoredTensors cross =
      T5("decoder", 0, "1.EncDecAttention", {{"relative_attention_bias.weight", {32, 4}}});
  EXPECT_FALSE(PlanOrFail(config, "cross.0", cross).spec.position_bias.has_value());
  ExpectPlanRefused(config, "1", stored, absl::StatusCode::kNotFound,
                    "must name a part of the family \"t5\", encoder, decoder, cross; was \"1\"");
}

TEST(PlanSeq2Seq, HeadsByStackAndBiasesByFamily) {
  const NamedShapes three = {{"q_proj.bias", {16}}, {"v_proj.bias", {16}}, {"out_proj.bias", {16}}};
  StoredTensors stored = OutProj("model.decoder.layers.0.encoder_attn.", three);
  const std::string sizes =
      R"(,"d_model":16,"encoder_attention_heads":2,"decoder_attention_heads":4})";
  const LayerPlan whisper = PlanOrFail(R"({"model_type":"whisper")" + sizes, "cross.0", stored);
  EXPECT_EQ(whisper.spec.heads, 4);
  EXPECT_EQ(whisper.tensors.size(), 7u);
  ExpectPlanRefused(R"({"model_type":"marian")" + sizes, "cross.0", stored,
                    absl::StatusCode::kNotFound, "encoder_attn.k_proj.bias");
  AddTensors(&stored, "model.decoder.layers.0.encoder_attn.", {{"k_proj.bias", {16}}});
  EXPECT_EQ(PlanOrFail(R"({"model_type":"m2m_100")" + sizes, "cross.0", stored).tensors.size(), 8u);
  ExpectPlanRefused(R"({"model_type":"whisper")" + sizes, "cross.0", stored,
                    absl::StatusCode::kDataLoss, "k_proj.bias");
}

}  // namespace
}  // namespace headwise
