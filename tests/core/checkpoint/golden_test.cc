// SPDX-License-Identifier: Apache-2.0
// The stored checkpoints, planned: names, shapes and settings as their descriptions say.
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/checkpoint.h"
#include "core/kernel/rope_frequencies.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/golden_layer.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Checkpoint> OpenData(absl::string_view root, absl::string_view dir) {
  auto checkpoint = Checkpoint::Open(TestDataPath(root), dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

int64_t Number(const json& value) { return value.get<int64_t>(); }

std::optional<double> OrNull(const json& value) {
  return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
}

void ExpectRope(const json& rope, const LayerSpec& spec) {
  ASSERT_EQ(spec.rope.has_value(), !rope.is_null());
  if (rope.is_null()) return;
  EXPECT_EQ(spec.rope->layout == RopeLayout::kInterleaved, rope["layout"] == "interleaved");
  EXPECT_EQ(spec.rope->dims, Number(rope["dims"]));
  EXPECT_EQ(spec.rope->base, rope["base"].get<double>());
  // The case's lengths are within what the model was trained for.
  const RopeFrequencies made = MakeRopeFrequencies(*spec.rope, spec.rope->dims, 1);
  EXPECT_TRUE(AllNear(made.inv_freq, rope["inv_freq"].get<std::vector<double>>(), 1e-14));
  EXPECT_NEAR(made.attention_factor, rope["attention_factor"].get<double>(), 1e-14);
}

void ExpectPositionBias(const json& described, const LayerSpec& spec) {
  const json& alibi = described["alibi"];
  const json& buckets = described["relative_bias"];
  ASSERT_EQ(spec.position_bias.has_value(), !alibi.is_null() || !buckets.is_null());
  if (!alibi.is_null()) {
    EXPECT_EQ(spec.position_bias->slopes, alibi["slopes"].get<std::vector<float>>());
    EXPECT_EQ(spec.position_bias->scaled, alibi["times_scale"].get<bool>());
    EXPECT_EQ(spec.position_bias->rounded_to_bf16, alibi["rounded_to_bf16"].get<bool>());
  }
  if (!buckets.is_null()) {
    EXPECT_EQ(spec.position_bias->buckets, Number(buckets["num_buckets"]));
    EXPECT_EQ(spec.position_bias->max_distance, Number(buckets["max_distance"]));
    EXPECT_EQ(spec.position_bias->bidirectional, buckets["bidirectional"].get<bool>());
  }
}

void ExpectNorm(const json& norm, const LayerSpec& spec) {
  ASSERT_EQ(spec.qk_norm.has_value(), !norm.is_null());
  if (norm.is_null()) return;
  const std::map<std::string, NormKind> kinds = {{"rms", NormKind::kRms},
                                                 {"rms_plus1", NormKind::kRmsPlusOne},
                                                 {"layernorm", NormKind::kLayerNorm}};
  const std::map<std::string, QkNormSpan> spans = {
      {"d", QkNormSpan::kHead}, {"[H,d]", QkNormSpan::kHeads}, {"H*d", QkNormSpan::kWidth}};
  EXPECT_EQ(spec.qk_norm->kind, kinds.at(norm["kind"]));
  EXPECT_EQ(spec.qk_norm->span, spans.at(norm["width"]));
  EXPECT_EQ(spec.qk_norm->epsilon, norm["eps"].get<double>());
}

// case.json's description of a layer against the plan.
void ExpectAsDescribed(const json& layer, const LayerPlan& plan) {
  const json& spec = layer["spec"];
  EXPECT_EQ(plan.source.prefix, layer["prefix"].get<std::string>());
  EXPECT_EQ(plan.spec.heads, Number(spec["H"]));
  EXPECT_EQ(plan.spec.kv_heads, Number(spec["G"]));
  EXPECT_EQ(plan.spec.dk.front(), Number(spec["dk"]));
  EXPECT_EQ(plan.spec.dv.front(), Number(spec["dv"]));
  EXPECT_EQ(plan.spec.d_model, Number(spec["D"]));
  EXPECT_EQ(plan.spec.d_out, Number(spec["D_out"]));
  EXPECT_NEAR(plan.spec.head_scale(0), spec["scale"].get<double>(), 1e-15);
  EXPECT_EQ(plan.spec.mask.causal, spec["causal"].get<bool>());
  std::optional<int64_t> window;
  if (!spec["window"].is_null()) window = Number(spec["window"]);
  EXPECT_EQ(plan.spec.mask.window, window);
  EXPECT_EQ(plan.spec.softcap, OrNull(spec["softcap"]));
  EXPECT_EQ(plan.spec.clip, OrNull(spec["clip"]));
  EXPECT_EQ(plan.spec.sinks, spec["sinks"].get<bool>());
  ExpectRope(spec["rope"], plan.spec);
  ExpectPositionBias(spec, plan.spec);
  ExpectNorm(spec["qk_norm"], plan.spec);
}

class GoldenPlans : public ::testing::TestWithParam<GoldenLayer> {};

TEST_P(GoldenPlans, AreAsDescribed) {
  ExpectAsDescribed(GetParam().described, PlanGolden(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenPlans, ::testing::ValuesIn(GoldenLayers()),
                         [](const auto& layer) { return GoldenName(layer.param); });

TEST(GoldenFolders, ListTheirLayersByParts) {
  const auto layers = [](const char* folder) {
    const std::unique_ptr<Checkpoint> checkpoint = OpenData("golden", folder);
    return *ListLayerIds(checkpoint->config_json(), checkpoint->tensors());
  };
  EXPECT_THAT(layers("bert"), ElementsAre("0", "1"));
  EXPECT_THAT(layers("albert_groups"), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(layers("clip_text_vision"), ElementsAre("text.0", "text.1", "vision.0", "vision.1"));
  EXPECT_THAT(layers("t5_relative_bias"), ElementsAre("encoder.0", "encoder.1", "decoder.0",
                                                      "decoder.1", "cross.0", "cross.1"));
  EXPECT_THAT(layers("whisper_encoder"),
              ElementsAre("encoder.0", "encoder.1", "decoder.0", "cross.0"));
}

TEST(StoredModels, Minilm) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenData("data", "minilm");
  ASSERT_NE(checkpoint, nullptr);
  const auto plan = PlanLayer(checkpoint->config_json(), "3", checkpoint->tensors());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->source.prefix, "encoder.layer.3.attention");
  EXPECT_EQ(plan->spec.heads, 12);
  EXPECT_EQ(plan->spec.dk.front(), 32);
  EXPECT_EQ(plan->tensors.size(), 8u);
  EXPECT_THAT(*ListLayerIds(checkpoint->config_json(), checkpoint->tensors()),
              ElementsAre("0", "1", "2", "3", "4", "5"));
  const absl::Status status =
      PlanLayer(checkpoint->config_json(), "6", checkpoint->tensors()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("encoder.layer.6.attention.self.query.weight"));
}

TEST(StoredModels, Smollm2HasTwoOfItsThirtyLayers) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenData("data", "smollm2");
  ASSERT_NE(checkpoint, nullptr);
  const auto plan = PlanLayer(checkpoint->config_json(), "12", checkpoint->tensors());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.heads, 9);
  EXPECT_EQ(plan->spec.kv_heads, 3);
  EXPECT_EQ(plan->spec.rope->base, 100000.0);
  EXPECT_TRUE(plan->spec.mask.causal);
  EXPECT_THAT(*ListLayerIds(checkpoint->config_json(), checkpoint->tensors()),
              ElementsAre("0", "12"));
  EXPECT_EQ(PlanLayer(checkpoint->config_json(), "1", checkpoint->tensors()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(StoredModels, RepositoryListsThem) {
  std::vector<std::string> supported;
  for (const CheckpointSummary& summary : ListRepository(TestDataPath("data"))) {
    if (summary.supported) supported.push_back(absl::StrCat(summary.family, " ", summary.dir));
  }
  EXPECT_THAT(supported, ElementsAre("bert minilm", "llama smollm2"));
}

}  // namespace
}  // namespace headwise
