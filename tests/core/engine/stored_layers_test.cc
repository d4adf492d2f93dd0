// SPDX-License-Identifier: Apache-2.0
// The engine against stored layers: random ones that a framework computed in float64, trained ones
// (MiniLM, SmolLM2), the two hand-sized layers, and the chapter's example of shapes.
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/layer/demo_layers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/stored_layer.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;

// Errors relative to the largest |y|, and of p. All sequences in one request, and each alone with
// the same bits.
void ExpectAgrees(const StoredCase& stored, double y_tolerance, double p_tolerance) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", stored.layer);
  const auto result =
      ForwardNow(engine.get(), MakeForward("layer", stored.input, kOutputY | kOutputP));
  ASSERT_TRUE(result.ok()) << result.status();
  auto outputs = ByName(result->outputs);
  const int64_t width = stored.layer.spec.d_out;
  EXPECT_TRUE(AllNear(outputs["y"], stored.y, y_tolerance * LargestMagnitude(stored.y),
                      {static_cast<int64_t>(stored.y.size()) / width, width}));
  for (size_t b = 0; b < stored.p.size(); ++b) {
    EXPECT_TRUE(AllNear(outputs[absl::StrCat("p.", b)], stored.p[b], p_tolerance)) << "p." << b;
  }
}

TEST(StoredLayers, BertGolden) {
  ExpectAgrees(BertGolden(0), 4e-6, 5e-6);
  ExpectAgrees(BertGolden(1), 4e-6, 5e-6);
}

TEST(StoredLayers, MistralWindowGolden) {
  ExpectAgrees(MistralWindowGolden(0), 4e-6, 5e-6);
  ExpectAgrees(MistralWindowGolden(1), 4e-6, 5e-6);
}

TEST(StoredLayers, Minilm) {
  ExpectAgrees(Minilm(0), 4e-6, 5e-6);
  ExpectAgrees(Minilm(3), 4e-6, 5e-6);
}

TEST(StoredLayers, Smollm2) {
  ExpectAgrees(Smollm2(0), 4e-6, 5e-6);
  ExpectAgrees(Smollm2(12), 4e-6, 5e-6);
}

nlohmann::json ReadJson(const std::string& relative) {
  std::ifstream stream(TestDataPath(relative));
  return nlohmann::json::parse(stream);
}

void Flatten(const nlohmann::json& value, std::vector<double>* out) {
  if (!value.is_array()) return out->push_back(value.get<double>());
  for (const nlohmann::json& element : value) Flatten(element, out);
}

TEST(StoredLayers, TwoHeadLayersNumberByNumber) {
  for (const DemoLayer& demo : DemoLayers()) {
    const std::unique_ptr<Engine> engine = MakeEngine();
    LoadOptions options;
    options.name = demo.name;
    ASSERT_TRUE(engine->LoadLayer(options, demo.spec, demo.RoleTensors()).ok());
    const TestInput input(4, *ToFloats(demo.x.view(), "x"));
    const auto result = ForwardNow(engine.get(), MakeForward(demo.name, input, kAllOutputs));
    ASSERT_TRUE(result.ok()) << result.status();
    auto outputs = ByName(result->outputs);
    const std::string folder = demo.name == "two-head" ? "two_head" : "two_head_unequal";
    const nlohmann::json expected = ReadJson(absl::StrCat("data/", folder, "/expected.json"));
    for (const auto& [name, values] : expected.items()) {
      std::vector<double> numbers;
      Flatten(values, &numbers);
      const std::string own = name == "p" || name == "scores" ? name + ".0" : name;
      EXPECT_TRUE(AllNear(outputs[own], numbers, 2e-6)) << demo.name << " " << name;
    }
  }
}

void ExpectEffect(const Effect& effect, const nlohmann::json& expected) {
  const double relative = expected["relative_l2"].get<double>();
  EXPECT_NEAR(*effect.relative_l2, relative, 1e-5 * relative);
  EXPECT_NEAR(*effect.cosine, expected["cosine"].get<double>(), 1e-6);
  const double l2 = expected["l2"].get<double>();
  EXPECT_NEAR(*effect.l2, l2, 1e-5 * l2);
}

// A sweep over all tokens against the float64 figures `expected`, one entry an ablation.
void ExpectSweep(const StoredCase& stored, SweepTarget target, const nlohmann::json& expected) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", stored.layer);
  AblateRequest request;
  request.layer = "layer";
  request.input = stored.input.get();
  request.sweep = SweepKind::kLeaveOneOut;
  request.target = target;
  const auto result = AblateNow(engine.get(), std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->forwards, 1);
  ASSERT_EQ(result->ablations.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("ablation ", i));
    const AblationEffect& effect = result->ablations[i];
    ExpectEffect(effect.pooled, expected[i]);
    if (!expected[i].contains("per_sequence")) continue;
    const nlohmann::json& sequences = expected[i]["per_sequence"];
    ASSERT_EQ(effect.per_sequence.size(), sequences["l2"].size());
    for (size_t b = 0; b < effect.per_sequence.size(); ++b) {
      ExpectEffect(effect.per_sequence[b], {{"l2", sequences["l2"][b]},
                                            {"relative_l2", sequences["relative_l2"][b]},
                                            {"cosine", sequences["cosine"][b]}});
    }
  }
}

// Named ablations, each of several heads: pairs of heads, all heads.
void ExpectAblations(const StoredCase& stored, const nlohmann::json& expected) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", stored.layer);
  AblateRequest request;
  request.layer = "layer";
  request.input = stored.input.get();
  for (const nlohmann::json& entry : expected) {
    Intervention zero;
    zero.heads = entry["heads"].get<std::vector<int64_t>>();
    request.ablations.push_back({{zero}});
  }
  const auto result = AblateNow(engine.get(), std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("ablation ", i));
    ExpectEffect(result->ablations[i].pooled, expected[i]);
  }
}

TEST(StoredLayers, EffectsOfMinilmHeads) {
  const nlohmann::json expected = ReadJson("data/minilm/expected_ablation.json");
  ExpectSweep(Minilm(0), SweepTarget::kHeads, expected["layer0"]["heads"]);
  ExpectSweep(Minilm(3), SweepTarget::kHeads, expected["layer3"]["heads"]);
  ExpectAblations(Minilm(0), expected["layer0"]["pairs"]);
}

TEST(StoredLayers, EffectsOfSmollm2HeadsAndGroups) {
  const nlohmann::json expected = ReadJson("data/smollm2/expected_ablation.json");
  ExpectSweep(Smollm2(12), SweepTarget::kHeads, expected["layer12"]["heads"]);
  ExpectSweep(Smollm2(12), SweepTarget::kGroups, expected["layer12"]["kv_groups"]);
  ExpectAblations(Smollm2(12), expected["layer12"]["pairs"]);
}

// The seeds: batch 2, 10 tokens, width 512, 8 heads.
TEST(Chapter, ShapesOfTheExample) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", RandomLayer(BasicSpec(512, 8), 5));
  const LayerInfo info = *engine->GetLayer("layer");
  EXPECT_THAT(info.spec.dk, ElementsAre(64, 64, 64, 64, 64, 64, 64, 64));
  const TestInput input(512, RandomFloats(2 * 10 * 512, 6), {10, 10});
  const auto result =
      ForwardNow(engine.get(), MakeForward("layer", input, kOutputY | kOutputP | kOutputScores));
  ASSERT_TRUE(result.ok()) << result.status();
  std::map<std::string, Shape> shapes;
  int64_t scores = 0;
  for (const NamedOutput& output : result->outputs) {
    shapes[output.name] = output.shape;
    if (output.name.starts_with("scores.")) scores += *NumElements(output.shape);
  }
  EXPECT_THAT(shapes["y"], ElementsAre(20, 512));
  EXPECT_THAT(shapes["p.0"], ElementsAre(8, 10, 10));
  EXPECT_THAT(shapes["p.1"], ElementsAre(8, 10, 10));
  EXPECT_THAT(shapes["scores.1"], ElementsAre(8, 10, 10));
  EXPECT_EQ(scores, 1600);
}

TEST(Chapter, WidthThatHeadsDoNotDivide) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  LoadOptions options;
  options.name = "layer";
  const absl::Status refused = engine->LoadLayer(options, BasicSpec(512, 7), {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "width: model width must divide evenly across heads; was 512 for 7");
}

}  // namespace
}  // namespace headwise
