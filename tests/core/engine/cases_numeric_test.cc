// SPDX-License-Identifier: Apache-2.0
// Cases of public bug reports (N: numerics of attention) against the engine. ID(D, H) and AVG(D, H)
// are layers of identity matrices; AVG has W_q = 0, so an output row is the mean of what it sees.
#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kClose = 1e-5;

absl::Status Refusal(const TestLayer& layer, const TestInput& input) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer);
  return ForwardNow(engine.get(), MakeForward("layer", input)).status();
}

#define EXPECT_INVALID(layer, input) \
  EXPECT_EQ(Refusal(layer, input).code(), absl::StatusCode::kInvalidArgument)

TEST(Cases, N1_RowThatSeesNoKeyGivesTheOutputBias) {
  TestLayer layer = AverageLayer(1, 1);
  layer.matrices.bo = {0.5f};
  TestInput keep(1, {1, 2, 4});
  keep.Keep(MaskForm::kPair, {1, 0, 0, 1, 1, 0, 0, 0, 0});
  const Floats y = RunY(layer, keep);
  EXPECT_THAT(y, ElementsAre(1.5f, 2.0f, 0.5f));

  const float hide = -kInfinity;
  TestInput additive(1, {1, 2, 4});
  additive.Additive(MaskForm::kPair, {0, hide, hide, 0, 0, hide, hide, hide, hide});
  EXPECT_TRUE(SameBits(RunY(layer, additive), y));

  // A finite number is an ordinary number: three equal scores, an even average.
  additive.Additive(MaskForm::kPair, {0, hide, hide, 0, 0, hide, -1e30f, -1e30f, -1e30f});
  EXPECT_TRUE(AllNear(RunY(layer, additive), Doubles{1.5, 2.0, 2.8333333}, kClose));
}

TEST(Cases, N3_HiddenKeysAreInertWhateverTheyHold) {
  float bytes = 0.0f;
  const uint32_t payload = 0xffbadf00u;  // a NaN as memory may hold it
  std::memcpy(&bytes, &payload, sizeof(bytes));
  for (const float poison : {kNan, kInfinity, -kInfinity, 3e38f, bytes}) {
    TestInput input(1, {1, 3, poison});
    input.Keep(MaskForm::kKey, {1, 1, 0});
    const Floats y = RunY(AverageLayer(1, 1), input);
    EXPECT_EQ(y[0], 2.0f) << poison;
    EXPECT_EQ(y[1], 2.0f) << poison;
  }
}

// The hidden token's own row: a finite number leaves it alone. (NaN or infinity would make its own
// query NaN, and NaN that a row sees stays NaN.)
TEST(Cases, N3_RowOfTheHiddenTokenItself) {
  TestLayer layer = AverageLayer(1, 1);
  for (const float poison : {3e38f, -3e38f}) {
    TestInput input(1, {1, 3, poison});
    input.Keep(MaskForm::kKey, {1, 1, 0});
    EXPECT_THAT(RunY(layer, input), Each(2.0f));
  }
}

TEST(Cases, N4_MasksCombineWithoutOverflow) {
  TestInput left_padded(1, {7, 4});
  left_padded.Causal(CausalMode::kTopLeft).Keep(MaskForm::kKey, {0, 1});
  EXPECT_THAT(RunY(AverageLayer(1, 1), left_padded), ElementsAre(0.0f, 4.0f));

  const float low = -3.39e38f;
  TestInput planes(1, {7, 4, 9});
  planes.Additive(MaskForm::kPair, {0, low, low + low, 0, 0, low + low, 0, 0, low});
  EXPECT_THAT(RunY(AverageLayer(1, 1), planes), ElementsAre(7.0f, 5.5f, 5.5f));

  TestLayer low_scores = AverageLayer(1, 1);  // every score is -20
  low_scores.matrices.wk = {0.0f};
  low_scores.matrices.bq = {1.0f};
  low_scores.matrices.bk = {-20.0f};
  TestInput finite(1, {7, 4});
  finite.Additive(MaskForm::kPair, {-65504.0f, -65504.0f, -65504.0f, 0});
  EXPECT_THAT(RunY(low_scores, finite), ElementsAre(5.5f, 4.0f));
}

TEST(Cases, N6_CausalAlignmentIsNamed) {
  const TestLayer layer = AverageLayer(1, 1);
  TestInput wide(1, {0, 0}), tall(1, {0, 0, 0, 0, 0});
  wide.Memory(1, {1, 2, 3, 4, 5}).Causal(CausalMode::kBottomRight);
  tall.Memory(1, {1, 2}).Causal(CausalMode::kBottomRight);
  EXPECT_TRUE(AllNear(RunY(layer, wide), Doubles{2.5, 3.0}, kClose));
  EXPECT_TRUE(AllNear(RunY(layer, tall), Doubles{0, 0, 0, 1, 1.5}, kClose));
  wide.Causal(CausalMode::kTopLeft);
  tall.Causal(CausalMode::kTopLeft);
  EXPECT_TRUE(AllNear(RunY(layer, wide), Doubles{1, 1.5}, kClose));
  EXPECT_TRUE(AllNear(RunY(layer, tall), Doubles{1, 1.5, 1.5, 1.5, 1.5}, kClose));

  TestLayer causal = layer;
  causal.spec.mask.causal = true;
  wide.Causal(CausalMode::kLayer);
  EXPECT_INVALID(causal, wide);
  EXPECT_THAT(std::string(Refusal(causal, wide).message()), HasSubstr("causal"));

  TestInput square(1, {1, 2, 4});
  const Floats own = RunY(causal, square);
  EXPECT_TRUE(SameBits(RunY(layer, square.Causal(CausalMode::kTopLeft)), own));
  EXPECT_TRUE(SameBits(RunY(layer, square.Causal(CausalMode::kBottomRight)), own));
}

TEST(Cases, N7_CausalAndKeyMaskIntersect) {
  TestLayer causal = AverageLayer(1, 1);
  causal.spec.mask.causal = true;
  TestInput input(1, {1, 2, 4, 8});
  EXPECT_TRUE(AllNear(RunY(causal, input), Doubles{1, 1.5, 2.3333333, 3.75}, kClose));
  input.Keep(MaskForm::kKey, {1, 0, 1, 1});
  const Doubles expected = {1, 1, 2.5, 4.3333333};
  EXPECT_TRUE(AllNear(RunY(causal, input), expected, kClose));
  auto with_weights = RunForward(causal, input, kOutputY | kOutputP);
  EXPECT_TRUE(AllNear(with_weights["y"], expected, kClose));
  EXPECT_TRUE(AllNear(with_weights["p.0"],
                      Doubles{1, 0, 0, 0, 1, 0, 0, 0, 0.5, 0, 0.5, 0, 1. / 3, 0, 1. / 3, 1. / 3},
                      kClose));
  input.Causal(CausalMode::kNone);
  EXPECT_TRUE(AllNear(RunY(causal, input), Doubles(4, 4.3333333), kClose));
}

TEST(Cases, N8_MaskKindIsExplicit) {
  const TestLayer layer = AverageLayer(1, 1);
  const std::vector<uint8_t> mask = {1, 1, 0};
  EXPECT_THAT(RunY(layer, TestInput(1, {1, 2, 4}).Keep(MaskForm::kKey, mask)), Each(1.5f));
  EXPECT_THAT(RunY(layer, TestInput(1, {1, 2, 4}).Drop(MaskForm::kKey, mask)), Each(4.0f));
  const TestInput additive = TestInput(1, {1, 2}).Additive(MaskForm::kKey, {1.0f, 0.0f});
  EXPECT_TRUE(AllNear(RunY(layer, additive), Doubles{1.26894, 1.26894}, kClose));

  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer);
  const TestInput kept = TestInput(1, {1, 2, 4}).Keep(MaskForm::kKey, mask);
  ForwardRequest unset = MakeForward("layer", kept);
  unset.input.mask->kind = MaskKind::kUnspecified;
  EXPECT_EQ(ForwardNow(engine.get(), unset).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_INVALID(layer, TestInput(1, {1, 2, 4}).Keep(MaskForm::kKey, {1, 2, 0}));
  EXPECT_INVALID(layer, TestInput(1, {1, 2}).Additive(MaskForm::kKey, {kNan, 0}));
  EXPECT_INVALID(layer, TestInput(1, {1, 2}).Additive(MaskForm::kKey, {kInfinity, 0}));
}

TEST(Cases, N9_HeadsAreSplitAndMergedByFeature) {
  const Floats x = {1, 2, 5, 6, 3, 4, 7, 8};
  TestInput own(4, x);
  own.Keep(MaskForm::kPair, {1, 0, 0, 1});
  EXPECT_EQ(RunY(IdentityLayer(4, 2), own), x);
  EXPECT_THAT(RunY(AverageLayer(4, 2), TestInput(4, x)), ElementsAre(2, 3, 6, 7, 2, 3, 6, 7));
}

TEST(Cases, N10_ScoresAreScaledByTheWidthOfTheHead) {
  const TestInput input(8, {2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0});
  auto outputs = RunForward(IdentityLayer(8, 2), input, kOutputP | kOutputScores);
  EXPECT_NEAR(outputs["p.0"][0], 0.88080, 5e-6);
  EXPECT_EQ(outputs["scores.0"][0], 2.0f);
  EXPECT_EQ(outputs["scores.0"][1], 0.0f);
}

// Heads of width 1 on x = [1]; v of key/value head g is values[g].
TestLayer GroupedLayer(int64_t heads, const Floats& values) {
  LayerSpec spec = BasicSpec(1, heads);
  spec.kv_heads = static_cast<int64_t>(values.size());
  spec.dk = {1};
  spec.d_out = heads;
  TestLayer layer;
  layer.spec = *ResolveSpec(spec);
  layer.matrices.wq.assign(static_cast<size_t>(heads), 1.0f);
  layer.matrices.wk.assign(values.size(), 1.0f);
  layer.matrices.wv = values;
  layer.matrices.wo = Identity(heads);
  return layer;
}

TEST(Cases, N11_GroupedHeadsShareConsecutively) {
  EXPECT_THAT(RunY(GroupedLayer(4, {10, 20}), TestInput(1, {1})), ElementsAre(10, 10, 20, 20));
  EXPECT_THAT(RunY(GroupedLayer(6, {1, 2, 3}), TestInput(1, {1})), ElementsAre(1, 1, 2, 2, 3, 3));

  TestLayer layer = GroupedLayer(6, {1, 2, 3});
  layer.spec.kv_heads = 4;
  layer.spec.query_to_kv.clear();
  const std::unique_ptr<Engine> engine = MakeEngine();
  LoadOptions options;
  options.name = "layer";
  const LayerTensors tensors(GroupedLayer(6, {1, 2, 3}));
  const absl::Status refused = engine->LoadLayer(options, layer.spec, tensors.roles()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("kv_heads"));
  EXPECT_THAT(engine->ListLayers(), IsEmpty());
}

TEST(Cases, N12_RopeLayoutIsDeclared) {
  TestLayer layer = IdentityLayer(4, 1);
  layer.spec.rope = RopeSpec{};
  layer.spec.rope->layout = RopeLayout::kHalf;
  const TestInput input(4, {1, 2, 3, 4, 1, 2, 3, 4});
  EXPECT_TRUE(AllNear(RunForward(layer, input, kOutputQ)["q"],
                      Doubles{1, 2, 3, 4, -1.98411, 1.95990, 2.46238, 4.01980}, kClose));
  layer.spec.rope->layout = RopeLayout::kInterleaved;
  auto outputs = RunForward(layer, input, kOutputQ | kOutputK);
  EXPECT_TRUE(
      AllNear(outputs["q"], Doubles{1, 2, 3, 4, -1.14264, 1.92208, 2.95985, 4.02980}, kClose));
  EXPECT_EQ(outputs["q"], outputs["k"]);
  double norm = 0.0;
  for (size_t i = 4; i < 8; ++i) norm += std::pow(static_cast<double>(outputs["q"][i]), 2);
  EXPECT_NEAR(norm, 30.0, 1e-4);
}

TEST(Cases, N13_WindowCountsTheOwnToken) {
  TestLayer layer = AverageLayer(1, 1);
  layer.spec.mask = {true, 3};
  const TestInput input(1, {1, 2, 4, 8, 16});
  EXPECT_TRUE(
      AllNear(RunY(layer, input), Doubles{1, 1.5, 2.3333333, 4.6666667, 9.3333333}, kClose));
  layer.spec.mask.window = 1;
  EXPECT_THAT(RunY(layer, input), ElementsAre(1, 2, 4, 8, 16));

  TestLayer plain = AverageLayer(1, 1);
  plain.spec.mask.causal = true;
  const Floats all = RunY(plain, input);
  layer.spec.mask.window = 5;
  EXPECT_TRUE(SameBits(RunY(layer, input), all));
  TestInput asked = input;
  EXPECT_TRUE(AllNear(RunY(plain, asked.Window(3)),
                      Doubles{1, 1.5, 2.3333333, 4.6666667, 9.3333333}, kClose));
  EXPECT_INVALID(plain, asked.Window(0));
}

TEST(Cases, N15_CrossAttentionOfAnotherWidth) {
  LayerSpec spec = BasicSpec(4, 2);
  spec.d_memory = 2;
  TestLayer layer;
  layer.spec = *ResolveSpec(spec);
  layer.matrices.wq.assign(16, 0.0f);
  layer.matrices.wk = {1, 2, 3, 4, 5, 6, 7, 8};
  layer.matrices.wv = {1, 0, 0, 1, 1, 1, 1, -1};
  layer.matrices.wo = Identity(4);
  TestInput input(4, {1, 2, 3, 4, 5, 6, 7, 8});
  input.Memory(2, {3, 0, 0, 3, 3, 3});
  EXPECT_TRUE(AllNear(RunY(layer, input), Doubles{2, 2, 4, 0, 2, 2, 4, 0}, kClose));

  TestInput wrong(4, {1, 2, 3, 4});
  wrong.Memory(3, {1, 2, 3});
  const absl::Status refused = Refusal(layer, wrong);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("memory"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3"));
}

TEST(Cases, N16_EmptySizesAndOneToken) {
  TestLayer layer = RandomLayer(BasicSpec(2, 1), 7);
  layer.matrices.bo = {0.5f, 0.25f};
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer);
  const auto run = [&](const AttentionInput& input) {
    ForwardRequest request;
    request.layer = "layer";
    request.input = input;
    absl::StatusOr<ForwardResult> result = ForwardNow(engine.get(), request);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->outputs.front() : NamedOutput{};
  };

  AttentionInput none;
  none.x.shape = {0, 3, 2};  // B = 0
  EXPECT_THAT(run(none).shape, ElementsAre(0, 2));
  none.x.shape = {3, 0, 2};  // T = 0
  EXPECT_THAT(run(none).shape, ElementsAre(0, 2));
  none.x.shape = {0, 2};
  EXPECT_THAT(run(none).shape, ElementsAre(0, 2));

  const TestInput no_keys = TestInput(2, {1, 2, 3, 4}).Memory(2, {}, {0});
  EXPECT_THAT(RunY(layer, no_keys), ElementsAre(0.5f, 0.25f, 0.5f, 0.25f));

  const LayerMatrices& m = layer.matrices;
  const double v0 = 3.0 * m.wv[0] + 5.0 * m.wv[1] + m.bv[0];
  const double v1 = 3.0 * m.wv[2] + 5.0 * m.wv[3] + m.bv[1];
  const Doubles expected = {m.wo[0] * v0 + m.wo[1] * v1 + m.bo[0],
                            m.wo[2] * v0 + m.wo[3] * v1 + m.bo[1]};
  const TestInput one(2, {3, 5});
  const NamedOutput y = run(one.get());
  EXPECT_TRUE(AllNear(Floats{y.floats()[0], y.floats()[1]}, expected, kClose));
}

TEST(Cases, N18_LayoutsOfTheSameNumbersAgree) {
  const TestLayer layer = RandomLayer(BasicSpec(12, 3), 18);
  const TestInput input(12, RandomFloats(2 * 5 * 12, 19), {5, 5});
  const Floats separate = RunY(layer, input);

  TestLayer fused = layer;
  fused.spec.fused_layout = FusedLayout::kBlocks;
  std::vector<float> rows = layer.matrices.wq, biases = layer.matrices.bq;
  for (const auto& part : {layer.matrices.wk, layer.matrices.wv}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  for (const auto& part : {layer.matrices.bk, layer.matrices.bv}) {
    biases.insert(biases.end(), part.begin(), part.end());
  }
  const OwnedTensor weight = FloatTensor({36, 12}, rows), bias = FloatTensor({36}, biases);
  const OwnedTensor wo = FloatTensor({12, 12}, layer.matrices.wo);
  const OwnedTensor bo = FloatTensor({12}, layer.matrices.bo);
  const std::unique_ptr<Engine> engine = MakeEngine();
  LoadOptions options;
  options.name = "fused";
  ASSERT_TRUE(engine
                  ->LoadLayer(options, fused.spec,
                              {{TensorRole::kQkvWeight, "qkv", weight.view()},
                               {TensorRole::kQkvBias, "qkv.bias", bias.view()},
                               {TensorRole::kOWeight, "o", wo.view()},
                               {TensorRole::kOBias, "o.bias", bo.view()}})
                  .ok());
  const auto result = ForwardNow(engine.get(), MakeForward("fused", input));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(SameBits(ByName(result->outputs)["y"], separate));
}

TEST(Cases, N21_AskingForWeightsChangesNothing) {
  const TestLayer layer = IdentityLayer(2, 2);
  TestInput input(2, {1, 2, 3, 4});
  input.Keep(MaskForm::kHead, {1, 0, 1, 0, 0, 0, 0, 0});
  const Floats y = RunY(layer, input);
  EXPECT_THAT(y, ElementsAre(1, 0, 1, 0));
  auto outputs = RunForward(layer, input, kAllOutputs);
  EXPECT_TRUE(SameBits(outputs["y"], y));
  EXPECT_THAT(outputs["p.0"], ElementsAre(1, 0, 1, 0, 0, 0, 0, 0));
}

// Request r's y when it shares its pass with `others`.
Floats InCompany(Engine* engine, const TestInput& input, const std::vector<TestInput>& others) {
  std::vector<ForwardRequest> requests = {MakeForward("layer", input)};
  for (const TestInput& other : others) requests.push_back(MakeForward("layer", other));
  auto answers = ForwardTogether(engine, std::move(requests));
  EXPECT_TRUE(answers.front().ok()) << answers.front().status();
  EXPECT_EQ(answers.front()->pass.batch_requests, static_cast<int64_t>(others.size()) + 1);
  return ByName(answers.front()->outputs)["y"];
}

TEST(Cases, N22_SameBitsInAnyCompany) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", RandomLayer(BasicSpec(64, 4), 22));
  const TestInput input(64, RandomFloats(7 * 64, 1));
  const Floats alone = InCompany(engine.get(), input, {});
  for (const int64_t length : {int64_t{7}, int64_t{64}}) {
    for (const size_t count : {1u, 7u, 31u}) {
      std::vector<TestInput> others;
      for (uint32_t i = 0; i < count; ++i) {
        others.push_back(TestInput(64, RandomFloats(length * 64, 100 + i)));
      }
      EXPECT_TRUE(SameBits(InCompany(engine.get(), input, others), alone)) << count;
    }
  }
  const std::vector<TestInput> poisoned = {TestInput(64, Floats(7 * 64, kNan)),
                                           TestInput(64, Floats(7 * 64, 3e38f)),
                                           TestInput(64, Floats(7 * 64, -kInfinity))};
  EXPECT_TRUE(SameBits(InCompany(engine.get(), input, poisoned), alone));
}

}  // namespace
}  // namespace headwise
