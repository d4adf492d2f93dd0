// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tensors = std::vector<StoredTensorInfo>;

void AddBert(Tensors* stored, absl::string_view prefix, int64_t layer, int64_t width) {
  const std::string block = absl::StrCat(prefix, "encoder.layer.", layer, ".attention.");
  for (const char* name : {"self.query", "self.key", "self.value", "output.dense"}) {
    stored->push_back({absl::StrCat(block, name, ".weight"), "F32", {width, width}});
    stored->push_back({absl::StrCat(block, name, ".bias"), "F32", {width}});
  }
  stored->push_back({absl::StrCat(block, "output.LayerNorm.gamma"), "F32", {width}});
}

void AddLlama(Tensors* stored, int64_t layer, int64_t width, int64_t q, int64_t kv,
              bool biases = false) {
  const std::string block = absl::StrCat("model.layers.", layer, ".self_attn.");
  stored->push_back({block + "q_proj.weight", "BF16", {q, width}});
  stored->push_back({block + "k_proj.weight", "BF16", {kv, width}});
  stored->push_back({block + "v_proj.weight", "BF16", {kv, width}});
  stored->push_back({block + "o_proj.weight", "BF16", {width, q}});
  if (!biases) return;
  stored->push_back({block + "q_proj.bias", "BF16", {q}});
  stored->push_back({block + "k_proj.bias", "BF16", {kv}});
  stored->push_back({block + "v_proj.bias", "BF16", {kv}});
  stored->push_back({block + "o_proj.bias", "BF16", {width}});
}

std::string BertConfig(absl::string_view more = "") {
  return absl::StrCat(R"({"model_type":"bert","hidden_size":12,"num_attention_heads":3,)",
                      R"("num_hidden_layers":2)", more, "}");
}

std::string LlamaConfig(absl::string_view more = "", absl::string_view model_type = "llama") {
  return absl::StrCat(R"({"model_type":")", model_type,
                      R"(","hidden_size":16,"num_attention_heads":4,"num_key_value_heads":2,)",
                      R"("num_hidden_layers":3)", more, "}");
}

Tensors BertTensors(absl::string_view prefix = "bert.") {
  Tensors stored;
  AddBert(&stored, prefix, 0, 12);
  AddBert(&stored, prefix, 1, 12);
  return stored;
}

Tensors LlamaTensors(bool biases = false) {
  Tensors stored;
  for (int64_t layer = 0; layer < 3; ++layer) AddLlama(&stored, layer, 16, 16, 8, biases);
  return stored;
}

LayerPlan Plan(const std::string& config, absl::string_view layer, const Tensors& stored) {
  absl::StatusOr<LayerPlan> plan = PlanLayer(config, layer, stored);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : LayerPlan();
}

void ExpectRefused(const std::string& config, absl::string_view layer, const Tensors& stored,
                   absl::StatusCode code, absl::string_view text) {
  const absl::Status status = PlanLayer(config, layer, stored).status();
  EXPECT_EQ(status.code(), code) << config << " " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text)));
}

TEST(PlanBert, SpecAndNames) {
  const LayerPlan plan = Plan(BertConfig(), "1", BertTensors());
  EXPECT_EQ(plan.source.family, "bert");
  EXPECT_EQ(plan.source.layer, "1");
  EXPECT_EQ(plan.source.prefix, "bert.encoder.layer.1.attention");
  EXPECT_EQ(plan.spec.d_model, 12);
  EXPECT_EQ(plan.spec.heads, 3);
  EXPECT_EQ(plan.spec.kv_heads, 3);
  EXPECT_THAT(plan.spec.dk, ElementsAre(4, 4, 4));
  EXPECT_EQ(plan.spec.orientation, Orientation::kOutIn);
  EXPECT_FALSE(plan.spec.mask.causal);
  EXPECT_FALSE(plan.spec.rope.has_value());
  ASSERT_EQ(plan.tensors.size(), 8u);
  EXPECT_EQ(plan.tensors[0].role, TensorRole::kQWeight);
  EXPECT_EQ(plan.tensors[0].name, "bert.encoder.layer.1.attention.self.query.weight");
  EXPECT_EQ(plan.tensors[7].role, TensorRole::kOBias);
  EXPECT_EQ(plan.tensors[7].name, "bert.encoder.layer.1.attention.output.dense.bias");
}

TEST(PlanBert, PrefixesAndSiblings) {
  for (const char* prefix : {"", "bert.", "roberta.", "my.own.model."}) {
    EXPECT_EQ(Plan(BertConfig(), "0", BertTensors(prefix)).source.prefix,
              absl::StrCat(prefix, "encoder.layer.0.attention"));
  }
  for (const char* family : {"roberta", "xlm-roberta", "camembert", "electra"}) {
    const std::string config = absl::StrCat(R"({"model_type":")", family,
                                            R"(","hidden_size":12,"num_attention_heads":3})");
    EXPECT_EQ(Plan(config, "0", BertTensors()).source.family, family);
  }
}

TEST(PlanBert, SeveralPrefixesAreNamed) {
  Tensors stored = BertTensors("a.");
  AddBert(&stored, "b.", 0, 12);
  ExpectRefused(BertConfig(), "0", stored, absl::StatusCode::kDataLoss, "a.");
  ExpectRefused(BertConfig(), "0", stored, absl::StatusCode::kDataLoss, "b.");
  EXPECT_TRUE(PlanLayer(BertConfig(), "1", stored).ok());
}

TEST(PlanBert, AbsentSizesTakeTheClassDefaults) {
  Tensors stored;
  AddBert(&stored, "", 0, 768);
  EXPECT_EQ(Plan(R"({"model_type":"bert"})", "0", stored).spec.heads, 12);
  Tensors electra;
  AddBert(&electra, "electra.", 11, 256);
  EXPECT_EQ(Plan(R"({"model_type":"electra"})", "11", electra).spec.heads, 4);
}

TEST(PlanBert, DecoderIsCausal) {
  EXPECT_TRUE(Plan(BertConfig(R"(,"is_decoder":true)"), "0", BertTensors()).spec.mask.causal);
  Tensors stored = BertTensors();
  stored.push_back({"bert.encoder.layer.0.crossattention.self.query.weight", "F32", {12, 12}});
  const std::string config = BertConfig(R"(,"is_decoder":true,"add_cross_attention":true)");
  EXPECT_TRUE(Plan(config, "0", stored).spec.mask.causal);
  ExpectRefused(config, "cross.0", stored, absl::StatusCode::kNotFound,
                "bert.encoder.layer.0.crossattention.self.key.weight");
  ExpectRefused(config, "cross.1", stored, absl::StatusCode::kNotFound,
                "[PREFIX.]encoder.layer.1.crossattention.output.dense.bias");
}

TEST(PlanBert, SettingsThatAreNotCarriedOutAreNamed) {
  ExpectRefused(BertConfig(R"(,"position_embedding_type":"relative_key")"), "0", BertTensors(),
                absl::StatusCode::kUnimplemented,
                "config.json: position_embedding_type: not carried out by this release; was "
                "\"relative_key\"");
  ExpectRefused(BertConfig(R"(,"pruned_heads":{"0":[1]})"), "0", BertTensors(),
                absl::StatusCode::kUnimplemented, "pruned_heads");
  EXPECT_TRUE(PlanLayer(BertConfig(R"(,"position_embedding_type":"absolute","pruned_heads":{})"),
                        "0", BertTensors())
                  .ok());
}

TEST(Plan, LayerIds) {
  for (const char* layer : {"", "x", "-1", "+1", "01", "1.", ".1", "head.1", "1.1", "0 ", "0/../1",
                            "../0", "1234567890", "99999999999999999999", "encoder.", "a.b.c"}) {
    ExpectRefused(BertConfig(), layer, BertTensors(), absl::StatusCode::kInvalidArgument, "layer:");
  }
  ExpectRefused(BertConfig(), absl::string_view("0\0", 2), BertTensors(),
                absl::StatusCode::kInvalidArgument, "\\x00");
}

TEST(Plan, LayersThatAreNotThereNameWhatWasLookedFor) {
  ExpectRefused(BertConfig(), "7", BertTensors(), absl::StatusCode::kNotFound,
                "must be below 2 (num_hidden_layers); was 7; looked for "
                "[PREFIX.]encoder.layer.7.attention.self.query.weight");
  ExpectRefused(LlamaConfig(), "2", BertTensors(), absl::StatusCode::kNotFound,
                "[PREFIX.]layers.2.self_attn.o_proj.weight");
  ExpectRefused(BertConfig(), "decoder.0", BertTensors(), absl::StatusCode::kNotFound,
                "must name a part of the family \"bert\", cross; was \"decoder.0\"");
  ExpectRefused(LlamaConfig(), "decoder.0", LlamaTensors(), absl::StatusCode::kNotFound,
                "has no parts");
  Tensors stored = BertTensors();
  std::erase_if(stored, [](const auto& tensor) {
    return tensor.name == "bert.encoder.layer.0.attention.self.key.bias";
  });
  ExpectRefused(BertConfig(), "0", stored, absl::StatusCode::kNotFound,
                "bert.encoder.layer.0.attention.self.key.bias");
}

TEST(Plan, ModelTypesAreNamed) {
  ExpectRefused(R"({"model_type":"rwkv"})", "0", {}, absl::StatusCode::kUnimplemented, "\"rwkv\"");
  ExpectRefused("{}", "0", {}, absl::StatusCode::kDataLoss, "model_type");
  ExpectRefused(R"({"model_type":3})", "0", {}, absl::StatusCode::kDataLoss,
                "model_type: must be a text; was 3");
}

TEST(Plan, MalformedConfigs) {
  for (const char* config : {"", "[]", "{", "null", R"({"a":1,"a":2})", "{\"a\":nan}"}) {
    ExpectRefused(config, "0", {}, absl::StatusCode::kDataLoss, "config.json");
  }
  ExpectRefused("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", "0", {},
                absl::StatusCode::kDataLoss, "nests deeper");
  for (const char* value :
       {"0", "-3", "null", "\"3\"", "3.0", "true", "1e30", "18446744073709551615", "Infinity"}) {
    const std::string config =
        absl::StrCat(R"({"model_type":"bert","num_attention_heads":)", value, "}");
    ExpectRefused(config, "0", BertTensors(), absl::StatusCode::kDataLoss,
                  "num_attention_heads: must be a positive integer; was ");
  }
}

TEST(Plan, NonfiniteNumbersElsewhereAreFine) {
  const std::string config =
      BertConfig(R"(,"a":NaN,"b":[-Infinity,Infinity],"c":"NaN \" Infinity")");
  EXPECT_TRUE(PlanLayer(config, "0", BertTensors()).ok());
}

TEST(Plan, ShapesAndDtypes) {
  Tensors stored = BertTensors();
  stored[0].shape = {12, 24};
  ExpectRefused(BertConfig(), "0", stored, absl::StatusCode::kDataLoss,
                "shape must be [12, 12] by config.json (width 12, heads 3, kv heads 3, dk 4); was "
                "[12, 24]");
  stored = BertTensors();
  stored[0].dtype = "F8_E4M3";
  ExpectRefused(BertConfig(), "0", stored, absl::StatusCode::kUnimplemented, "was F8_E4M3");
  stored[0].dtype = "I8";
  ExpectRefused(BertConfig(), "0", stored, absl::StatusCode::kUnimplemented, "was I8");
  EXPECT_TRUE(PlanLayer(BertConfig(), "1", stored).ok());
}

TEST(Plan, HeadsThatDontDivide) {
  ExpectRefused(
      R"({"model_type":"bert","hidden_size":512,"num_attention_heads":7,"num_hidden_layers":2})",
      "0", BertTensors(), absl::StatusCode::kInvalidArgument,
      "width: model width must divide evenly across heads; was 512 for 7");
  ExpectRefused(LlamaConfig(R"(,"num_key_value_heads_old":1)"), "0", BertTensors(),
                absl::StatusCode::kNotFound, "");
  Tensors stored;
  AddLlama(&stored, 0, 12, 12, 8);
  ExpectRefused(
      R"({"model_type":"llama","hidden_size":12,"num_attention_heads":6,"num_key_value_heads":4})",
      "0", stored, absl::StatusCode::kInvalidArgument, "kv_heads");
}

TEST(Plan, StrayTensorsOfTheBlock) {
  Tensors stored = LlamaTensors();
  stored.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}});
  EXPECT_TRUE(PlanLayer(LlamaConfig(), "0", stored).ok());
  stored.push_back({"model.layers.0.self_attn.q_norm.weight", "BF16", {4}});
  ExpectRefused(LlamaConfig(), "0", stored, absl::StatusCode::kUnimplemented,
                "tensor \"model.layers.0.self_attn.q_norm.weight\": not known in the family "
                "\"llama\"");
  EXPECT_TRUE(PlanLayer(LlamaConfig(), "1", stored).ok());
}

TEST(Plan, ProblemsOfTensorsThatTheLayerNeeds) {
  Tensors stored = LlamaTensors();
  stored[0].problem = "shard 2 is missing";
  ExpectRefused(LlamaConfig(), "0", stored, absl::StatusCode::kDataLoss, "shard 2 is missing");
  EXPECT_TRUE(PlanLayer(LlamaConfig(), "1", stored).ok());
  EXPECT_THAT(*ListLayerIds(LlamaConfig(), stored), ElementsAre("1", "2"));
}

TEST(PlanLlama, SpecAndNames) {
  const LayerPlan plan =
      Plan(LlamaConfig(R"(,"rope_theta":100000,"rope_scaling":null)"), "2", LlamaTensors());
  EXPECT_EQ(plan.source.prefix, "model.layers.2.self_attn");
  EXPECT_EQ(plan.spec.kv_heads, 2);
  EXPECT_THAT(plan.spec.query_to_kv, ElementsAre(0, 0, 1, 1));
  EXPECT_TRUE(plan.spec.mask.causal);
  EXPECT_FALSE(plan.spec.mask.window.has_value());
  ASSERT_TRUE(plan.spec.rope.has_value());
  EXPECT_EQ(plan.spec.rope->layout, RopeLayout::kHalf);
  EXPECT_EQ(plan.spec.rope->dims, 4);
  EXPECT_EQ(plan.spec.rope->base, 100000.0);
  EXPECT_EQ(plan.tensors.size(), 4u);
}

TEST(PlanLlama, KvHeadsAndHeadDim) {
  Tensors stored;
  AddLlama(&stored, 0, 16, 16, 16);
  const auto config = [](absl::string_view more) {
    return absl::StrCat(R"({"model_type":"llama","hidden_size":16,"num_attention_heads":4)", more,
                        "}");
  };
  EXPECT_EQ(Plan(config(""), "0", stored).spec.kv_heads, 4);
  EXPECT_EQ(
      Plan(config(R"(,"num_key_value_heads":null,"head_dim":null)"), "0", stored).spec.kv_heads, 4);
  Tensors wide;
  AddLlama(&wide, 0, 16, 24, 24);
  EXPECT_THAT(Plan(config(R"(,"head_dim":6)"), "0", wide).spec.dk, ElementsAre(6, 6, 6, 6));
  // Mistral's class has 8 key/value heads where the key is absent, H where it is null.
  Tensors mistral;
  AddLlama(&mistral, 0, 64, 64, 32);
  EXPECT_EQ(
      Plan(R"({"model_type":"mistral","hidden_size":64,"num_attention_heads":16})", "0", mistral)
          .spec.kv_heads,
      8);
}

TEST(PlanLlama, Biases) {
  EXPECT_EQ(Plan(LlamaConfig(R"(,"attention_bias":true)"), "0", LlamaTensors(true)).tensors.size(),
            8u);
  ExpectRefused(LlamaConfig(R"(,"attention_bias":true)"), "0", LlamaTensors(),
                absl::StatusCode::kNotFound, "q_proj.bias");
  ExpectRefused(LlamaConfig(), "0", LlamaTensors(true), absl::StatusCode::kDataLoss, "bias");
  ExpectRefused(LlamaConfig(R"(,"attention_bias":1)"), "0", LlamaTensors(),
                absl::StatusCode::kDataLoss, "attention_bias: must be true or false; was 1");
}

TEST(PlanLlama, RopeInBothStyles) {
  const auto rope = [](absl::string_view more) {
    return *Plan(LlamaConfig(more), "0", LlamaTensors()).spec.rope;
  };
  EXPECT_EQ(rope("").base, 10000.0);
  EXPECT_EQ(rope(R"(,"rope_theta":500.5)").base, 500.5);
  EXPECT_EQ(rope(R"(,"rope_parameters":{"rope_theta":500.5,"rope_type":"default"})").base, 500.5);
  EXPECT_EQ(rope(R"(,"rope_theta":7.0,"rope_parameters":{"rope_theta":500.5})").base, 500.5);
  EXPECT_EQ(rope(R"(,"rope_theta":7.0,"rope_parameters":{"rope_type":"default"})").base, 7.0);
  EXPECT_EQ(rope(R"(,"rope_scaling":{"type":"default"})").dims, 4);
  EXPECT_EQ(rope(R"(,"partial_rotary_factor":0.5)").dims, 2);
  EXPECT_EQ(rope(R"(,"rope_parameters":{"partial_rotary_factor":0.5})").dims, 2);
  EXPECT_EQ(rope(R"(,"layer_types":["full_attention","full_attention","full_attention"],)"
                 R"("rope_parameters":{"full_attention":{"rope_theta":9.0}})")
                .base,
            9.0);
}

TEST(PlanLlama, RopeKindsThatAreNotCarriedOutAreNamed) {
  const auto refused = [](absl::string_view more, absl::StatusCode code, absl::string_view text) {
    ExpectRefused(LlamaConfig(more), "0", LlamaTensors(), code, text);
  };
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  refused(R"(,"rope_scaling":{"rope_type":"proportional","factor":8.0})", unimplemented,
          "rope_scaling.rope_type: not carried out by this release; was \"proportional\"");
  refused(R"(,"rope_scaling":{"type":"su","factor":2.0})", unimplemented,
          "rope_scaling.type: not carried out by this release; was \"su\"");
  refused(R"(,"rope_parameters":{"rope_type":"ntk","factor":4.0})", unimplemented,
          "rope_parameters.rope_type");
  const auto data_loss = absl::StatusCode::kDataLoss;
  refused(R"(,"rope_scaling":{"factor":2.0})", data_loss, "rope_scaling.factor");
  refused(R"(,"rope_scaling":7)", data_loss, "rope_scaling: must be an object or null; was 7");
  refused(R"(,"rope_theta":"big")", data_loss, "rope_theta: must be a positive finite number");
  refused(R"(,"rope_theta":Infinity)", data_loss, "rope_theta");
  refused(R"(,"rope_theta":-1.0)", data_loss, "rope_theta");
  refused(R"(,"partial_rotary_factor":1.5)", data_loss, "partial_rotary_factor");
  refused(R"(,"partial_rotary_factor":0.01)", data_loss, "partial_rotary_factor");
  refused(R"(,"rope_parameters":{"full_attention":{"rope_theta":9.0}})", data_loss, "layer_types");
}

TEST(PlanLlama, Windows) {
  const auto window = [](absl::string_view more) {
    return Plan(LlamaConfig(more, "mistral"), "1", LlamaTensors()).spec.mask.window;
  };
  EXPECT_EQ(window(""), 4096);
  EXPECT_EQ(window(R"(,"sliding_window":null)"), std::nullopt);
  EXPECT_EQ(window(R"(,"sliding_window":5)"), 5);
  const std::string types =
      R"(,"layer_types":["full_attention","sliding_attention","full_attention"])";
  EXPECT_EQ(window(R"(,"sliding_window":5)" + types), 5);
  EXPECT_EQ(Plan(LlamaConfig(R"(,"sliding_window":5)" + types, "mistral"), "0", LlamaTensors())
                .spec.mask.window,
            std::nullopt);
  ExpectRefused(LlamaConfig(types), "1", LlamaTensors(), absl::StatusCode::kUnimplemented,
                "layer_types[1]");
  ExpectRefused(LlamaConfig(R"(,"layer_types":["full_attention"])"), "1", LlamaTensors(),
                absl::StatusCode::kDataLoss, "layer_types");
  ExpectRefused(LlamaConfig(R"(,"sliding_window":0)", "mistral"), "1", LlamaTensors(),
                absl::StatusCode::kDataLoss, "sliding_window");
  ExpectRefused(LlamaConfig(R"(,"use_bidirectional_attention":true)"), "1", LlamaTensors(),
                absl::StatusCode::kUnimplemented, "use_bidirectional_attention");
}

TEST(ListLayers, InNumericOrder) {
  Tensors stored;
  for (const int64_t layer : {10, 2, 0}) AddLlama(&stored, layer, 16, 16, 8);
  const std::string config =
      R"({"model_type":"llama","hidden_size":16,"num_attention_heads":4,"num_key_value_heads":2})";
  EXPECT_THAT(*ListLayerIds(config, stored), ElementsAre("0", "2", "10"));
  EXPECT_EQ(ListLayerIds(config, BertTensors()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ListLayerIds(R"({"model_type":"rwkv"})", stored).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(ListLayers, ASettingThatStopsAllLayersIsTheAnswer) {
  const absl::Status status =
      ListLayerIds(LlamaConfig(R"(,"rope_scaling":{"type":"ntk","factor":2})"), LlamaTensors())
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"ntk\""));
}

}  // namespace
}  // namespace headwise
