// SPDX-License-Identifier: Apache-2.0
// The stored checkpoints, planned: names, shapes and settings as their descriptions say.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
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

// case.json's description of a layer against the plan.
void ExpectAsDescribed(const json& layer, const LayerPlan& plan) {
  const json& spec = layer["spec"];
  EXPECT_EQ(plan.source.prefix, layer["prefix"].get<std::string>());
  EXPECT_EQ(plan.spec.heads, spec["H"].get<int64_t>());
  EXPECT_EQ(plan.spec.kv_heads, spec["G"].get<int64_t>());
  EXPECT_EQ(plan.spec.dk.front(), spec["dk"].get<int64_t>());
  EXPECT_EQ(plan.spec.dv.front(), spec["dv"].get<int64_t>());
  EXPECT_EQ(plan.spec.d_model, spec["D"].get<int64_t>());
  EXPECT_NEAR(plan.spec.head_scale(0), spec["scale"].get<double>(), 1e-15);
  EXPECT_EQ(plan.spec.mask.causal, spec["causal"].get<bool>());
  std::optional<int64_t> window;
  if (!spec["window"].is_null()) window = spec["window"].get<int64_t>();
  EXPECT_EQ(plan.spec.mask.window, window);
  EXPECT_EQ(plan.tensors.size(), 4 + spec["biases"].size());
  ASSERT_EQ(plan.spec.rope.has_value(), !spec["rope"].is_null());
  if (spec["rope"].is_null()) return;
  EXPECT_EQ(plan.spec.rope->layout, RopeLayout::kHalf);
  EXPECT_EQ(plan.spec.rope->dims, spec["rope"]["dims"].get<int64_t>());
  EXPECT_EQ(plan.spec.rope->base, spec["rope"]["base"].get<double>());
}

void ExpectGolden(const std::string& name, const std::string& config_file) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenData("golden", name);
  ASSERT_NE(checkpoint, nullptr);
  const std::string folder = TestDataPath("golden/" + name + "/");
  const std::string config = ReadBytes(folder + config_file);
  const json description = json::parse(ReadBytes(folder + "case.json"));
  for (const json& layer : description["layers"]) {
    const auto plan =
        PlanLayer(config, absl::StrCat(layer["layer"].get<int>()), checkpoint->tensors());
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectAsDescribed(layer, *plan);
    for (const TensorUse& use : plan->tensors) EXPECT_TRUE(checkpoint->Read(use.name).ok());
  }
  EXPECT_THAT(*ListLayerIds(config, checkpoint->tensors()), ElementsAre("0", "1"));
}

TEST(Golden, Bert) { ExpectGolden("bert", "config.json"); }
TEST(Golden, MistralWindow) { ExpectGolden("mistral_window", "config.json"); }
TEST(Golden, MistralWindowInOldKeys) { ExpectGolden("mistral_window", "config.old.json"); }

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
