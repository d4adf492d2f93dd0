// SPDX-License-Identifier: Apache-2.0
// Settings of families in the reference, against numbers worked out by hand.
#include <cmath>

#include "core/reference/reference.h"
#include "core/reference/reference_position.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

using Doubles = std::vector<double>;
using Named = std::map<std::string, Doubles>;

constexpr double kExact = 1e-15;

// Identity weights of this spec.
TestLayer Identities(const LayerSpec& spec) {
  TestLayer layer = IdentityLayer(spec.d_model, spec.heads);
  layer.spec = *ResolveSpec(spec);
  return layer;
}

LayerSpec Alibi(std::vector<float> slopes, int64_t width) {
  LayerSpec spec = BasicSpec(width, static_cast<int64_t>(slopes.size()));
  spec.position_bias.emplace().slopes = std::move(slopes);
  return spec;
}

TEST(ReferenceSettings, SoftCapComesAfterTheScale) {
  LayerSpec spec = BasicSpec(1, 1);
  spec.scale = 2.0;
  spec.softcap = 3.0;
  const Named named = ReferenceByName(Identities(spec), TestInput(1, {1, 2}));
  const double a = 3 * std::tanh(2.0 / 3), b = 3 * std::tanh(4.0 / 3), c = 3 * std::tanh(8.0 / 3);
  EXPECT_TRUE(AllNear(named.at("scores.0"), Doubles{a, b, b, c}, kExact));
}

TEST(ReferenceSettings, ClipBoundsAllThreeProjections) {
  LayerSpec spec = BasicSpec(1, 1);
  spec.clip = 1.5;
  const Named named = ReferenceByName(Identities(spec), TestInput(1, {-4, 1, 2}));
  for (const char* name : {"q", "k", "v"}) {
    EXPECT_TRUE(AllNear(named.at(name), Doubles{-1.5, 1, 1.5}, 0.0)) << name;
  }
}

TEST(ReferenceSettings, ASinkTakesItsShareUnscaled) {
  LayerSpec spec = BasicSpec(1, 1);
  spec.sinks = true;
  spec.scale = 5.0;
  TestLayer layer = Identities(spec);
  layer.matrices.wq = {0.0f};
  layer.matrices.sinks = {std::log(2.0f)};
  const Named named = ReferenceByName(layer, TestInput(1, {4, 8}));
  // Two scores of 0 and a sink of weight 2: a quarter each.
  EXPECT_TRUE(AllNear(named.at("p.0"), Doubles{0.25, 0.25, 0.25, 0.25}, 1e-7));
  EXPECT_TRUE(AllNear(named.at("y"), Doubles{3, 3}, 1e-6));
  TestInput hidden(1, {4, 8});
  hidden.Keep(MaskForm::kKey, {0, 0});
  EXPECT_TRUE(AllNear(ReferenceByName(layer, hidden).at("y"), Doubles{0, 0}, 0.0));
}

TEST(ReferenceSettings, TheLayersOwnGatesMultiplyZ) {
  LayerSpec spec = BasicSpec(2, 2);
  spec.gates = {0.5f, 0.0f};
  const TestLayer layer = Identities(spec);
  const TestInput input(2, {6, 5});
  EXPECT_TRUE(AllNear(ReferenceByName(layer, input).at("z"), Doubles{3, 0}, 0.0));
  ReferenceOptions options;
  options.gates = {4.0, 4.0};
  EXPECT_TRUE(AllNear(ReferenceByName(layer, input, options).at("z"), Doubles{12, 0}, 0.0));
}

TEST(ReferenceSettings, AlibiGoesByPositionsAndIsScaledWhereSaid) {
  LayerSpec spec = Alibi({0.5f}, 1);
  spec.scale = 4.0;
  TestLayer layer = Identities(spec);
  layer.matrices.wq = {0.0f};
  TestInput input(1, {1, 1});
  input.Positions({3, 10});
  EXPECT_TRUE(AllNear(ReferenceByName(layer, input).at("scores.0"), Doubles{0, 3.5, -3.5, 0}, 0.0));
  layer.spec.position_bias->scaled = true;
  EXPECT_TRUE(AllNear(ReferenceByName(layer, input).at("scores.0"), Doubles{0, 14, -14, 0}, 0.0));
}

TEST(ReferenceSettings, FalconsAlibiIsRoundedThreeTimes) {
  PositionBiasSpec bias;
  bias.slopes = {0.3f};
  bias.rounded_to_bf16 = true;
  // bf16: 0.3 is 0.30078125, 257 is 256, and 0.30078125 * 7 = 2.10546875 is 2.109375.
  EXPECT_EQ(ReferenceAlibi(bias, 0, 5, 7), 2.109375);
  EXPECT_EQ(ReferenceAlibi(bias, 0, 5, 257), 77.0);
}

TEST(ReferenceSettings, BucketsChooseTheRowOfTheTable) {
  LayerSpec spec = BasicSpec(1, 1);
  PositionBiasSpec& bias = spec.position_bias.emplace();
  bias.kind = PositionBiasKind::kT5Buckets;
  bias.buckets = 4;
  bias.max_distance = 8;
  TestLayer layer = Identities(spec);
  layer.matrices.wq = {0.0f};
  layer.matrices.position_bias = {10, 11, 12, 13};
  const Named causal = ReferenceByName(layer, TestInput(1, {0, 0, 0}));
  EXPECT_TRUE(AllNear(causal.at("scores.0"), Doubles{10, 10, 10, 11, 10, 10, 12, 11, 10}, 0.0));
  layer.spec.position_bias->bidirectional = true;
  const Named both = ReferenceByName(layer, TestInput(1, {0, 0, 0}));
  EXPECT_TRUE(AllNear(both.at("scores.0"), Doubles{10, 13, 13, 11, 10, 13, 11, 11, 10}, 0.0));
}

Doubles NormalisedQ(NormKind kind, QkNormSpan span, std::vector<float> weight,
                    std::vector<float> bias) {
  LayerSpec spec = BasicSpec(4, 2);
  spec.qk_norm = QkNormSpec{kind, span, 0.0};
  TestLayer layer = Identities(spec);
  layer.matrices.q_norm = layer.matrices.k_norm = std::move(weight);
  layer.matrices.q_norm_bias = layer.matrices.k_norm_bias = std::move(bias);
  const Named named = ReferenceByName(layer, TestInput(4, {3, -3, 1, 7}));
  EXPECT_EQ(named.at("q"), named.at("k"));
  EXPECT_TRUE(AllNear(named.at("v"), Doubles{3, -3, 1, 7}, 0.0));
  return named.at("q");
}

TEST(ReferenceSettings, NormsOfQAndK) {
  const double rms = 1.0 / 5.0;  // of 1 and 7
  EXPECT_TRUE(AllNear(NormalisedQ(NormKind::kRms, QkNormSpan::kHead, {2, 3}, {}),
                      Doubles{2, -3, 2 * rms, 21 * rms}, kExact));
  EXPECT_TRUE(AllNear(NormalisedQ(NormKind::kRmsPlusOne, QkNormSpan::kHead, {2, 3}, {}),
                      Doubles{3, -4, 3 * rms, 28 * rms}, kExact));
  EXPECT_TRUE(AllNear(NormalisedQ(NormKind::kRms, QkNormSpan::kHeads, {2, 3, 4, 5}, {}),
                      Doubles{2, -3, 4 * rms, 35 * rms}, kExact));
  EXPECT_TRUE(
      AllNear(NormalisedQ(NormKind::kLayerNorm, QkNormSpan::kHeads, {2, 3, 4, 5}, {1, 1, 1, 1}),
              Doubles{3, -2, -3, 6}, kExact));
  const double wide = 1.0 / std::sqrt(17.0);  // of all four
  EXPECT_TRUE(AllNear(NormalisedQ(NormKind::kRms, QkNormSpan::kWidth, {1, 1, 2, 1}, {}),
                      Doubles{3 * wide, -3 * wide, 2 * wide, 7 * wide}, kExact));
}

TEST(ReferenceSettings, AStatisticCountsRowsOfPrunedHeads) {
  LayerSpec spec = BasicSpec(2, 1);
  spec.clip = 5.0;
  spec.qk_norm = QkNormSpec{NormKind::kRms, QkNormSpan::kWidth, 0.0, 1, 2};
  TestLayer layer = Identities(spec);
  layer.matrices.q_norm = layer.matrices.k_norm = {1, 2};
  layer.matrices.wq_statistic = {1, 1};        // 4, and with its bias 6, which the clip makes 5
  layer.matrices.wk_statistic = {1, 0, 0, 2};  // 3 and 2
  layer.matrices.bq_statistic = {2};
  const Named named = ReferenceByName(layer, TestInput(2, {3, 1}));
  const double q = 1.0 / std::sqrt(35.0 / 3.0), k = 1.0 / std::sqrt(23.0 / 4.0);
  EXPECT_TRUE(AllNear(named.at("q"), Doubles{3 * q, 2 * q}, kExact));
  EXPECT_TRUE(AllNear(named.at("k"), Doubles{3 * k, 2 * k}, kExact));
  EXPECT_TRUE(AllNear(named.at("v"), Doubles{3, 1}, 0.0));
}

TEST(ReferenceSettings, EachSequenceChoosesItsFrequencies) {
  LayerSpec spec = BasicSpec(2, 1);
  RopeSpec& rope = spec.rope.emplace();
  rope.layout = RopeLayout::kHalf;
  rope.scaling = RopeScaling::kLongRope;
  rope.original_max_positions = 2.0;
  rope.factor = 1.0;
  rope.short_factors = {1.0};
  rope.long_factors = {4.0};
  const TestLayer layer = Identities(spec);
  const Named named = ReferenceByName(layer, TestInput(2, {1, 0, 1, 0, 1, 0, 1, 0, 1, 0}, {2, 3}));
  const auto turned = [](double angle) { return Doubles{std::cos(angle), std::sin(angle)}; };
  Doubles expected;
  for (const double angle : {0.0, 1.0, 0.0, 0.25, 0.5}) {
    const Doubles pair = turned(angle);
    expected.insert(expected.end(), pair.begin(), pair.end());
  }
  EXPECT_TRUE(AllNear(named.at("q"), expected, kExact));
}

TEST(ReferenceSettings, TheAttentionFactorStretchesQAndK) {
  LayerSpec spec = BasicSpec(4, 1);
  RopeSpec& rope = spec.rope.emplace();
  rope.layout = RopeLayout::kInterleaved;
  rope.dims = 2;
  rope.scaling = RopeScaling::kYarn;
  rope.original_max_positions = 64.0;
  rope.factor = 2.0;
  rope.attention_factor = 1.5;
  const Named named = ReferenceByName(Identities(spec), TestInput(4, {1, 2, 3, 4}));
  // Only the turned features are stretched.
  EXPECT_TRUE(AllNear(named.at("q"), Doubles{1.5, 3, 3, 4}, kExact));
}

}  // namespace
}  // namespace headwise
