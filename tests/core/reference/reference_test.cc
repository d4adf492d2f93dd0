// SPDX-License-Identifier: Apache-2.0
// The reference against numbers worked out by hand (the values of the case list).
#include "core/reference/reference.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::IsNan;
using ::testing::SizeIs;

using Doubles = std::vector<double>;

constexpr double kExact = 1e-15;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Doubles Y(const TestLayer& layer, const TestInput& input, const ReferenceOptions& options = {}) {
  return ReferenceByName(layer, input, options)["y"];
}

TestLayer WithOutputBias(TestLayer layer, const std::vector<float>& bias) {
  layer.matrices.bo = bias;
  return layer;
}

TEST(Reference, RowThatSeesNoKeyGivesTheOutputBias) {
  const TestLayer layer = WithOutputBias(AverageLayer(1, 1), {0.5f});
  const Doubles expected = {1.5, 2.0, 0.5};
  TestInput keep(1, {1, 2, 4});
  keep.Keep(MaskForm::kPair, {1, 0, 0, 1, 1, 0, 0, 0, 0});
  EXPECT_TRUE(AllNear(Y(layer, keep), expected, 0.0));
  TestInput additive(1, {1, 2, 4});
  additive.Additive(MaskForm::kPair, {0, -kInfinity, -kInfinity, 0, 0, -kInfinity, -kInfinity,
                                      -kInfinity, -kInfinity});
  EXPECT_TRUE(AllNear(Y(layer, additive), expected, 0.0));
  additive.Additive(MaskForm::kPair,
                    {0, -kInfinity, -kInfinity, 0, 0, -kInfinity, -1e30f, -1e30f, -1e30f});
  EXPECT_TRUE(AllNear(Y(layer, additive), Doubles{1.5, 2.0, 7.0 / 3.0 + 0.5}, kExact));
}

TEST(Reference, HiddenKeysAreInertWhateverTheyHold) {
  for (const float poison : {kNan, kInfinity, -kInfinity, 3e38f}) {
    TestInput input(1, {1, 3, poison});
    input.Keep(MaskForm::kKey, {1, 1, 0});
    EXPECT_EQ(Y(AverageLayer(1, 1), input)[0], 2.0);
    EXPECT_EQ(Y(AverageLayer(1, 1), input)[1], 2.0);
  }
}

TEST(Reference, NanThatARowMaySeeStaysNan) {
  TestInput input(1, {1, kNan, 3});
  input.Causal(CausalMode::kTopLeft);
  const Doubles y = Y(AverageLayer(1, 1), input);
  EXPECT_EQ(y[0], 1.0);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST(Reference, CausalAlignment) {
  const TestLayer layer = AverageLayer(1, 1);
  TestInput wide(1, {0, 0}), tall(1, {0, 0, 0, 0, 0});
  wide.Memory(1, {1, 2, 3, 4, 5});
  tall.Memory(1, {1, 2});
  wide.Causal(CausalMode::kBottomRight);
  tall.Causal(CausalMode::kBottomRight);
  EXPECT_TRUE(AllNear(Y(layer, wide), Doubles{2.5, 3.0}, kExact));
  EXPECT_TRUE(AllNear(Y(layer, tall), Doubles{0, 0, 0, 1, 1.5}, kExact));
  wide.Causal(CausalMode::kTopLeft);
  tall.Causal(CausalMode::kTopLeft);
  EXPECT_TRUE(AllNear(Y(layer, wide), Doubles{1, 1.5}, kExact));
  EXPECT_TRUE(AllNear(Y(layer, tall), Doubles{1, 1.5, 1.5, 1.5, 1.5}, kExact));
}

TEST(Reference, MasksIntersect) {
  TestInput input(1, {1, 2, 4, 8});
  input.Keep(MaskForm::kKey, {1, 0, 1, 1});
  EXPECT_THAT(Y(AverageLayer(1, 1), input), Each(13.0 / 3.0));
  input.Causal(CausalMode::kTopLeft);
  EXPECT_TRUE(AllNear(Y(AverageLayer(1, 1), input), Doubles{1, 1, 2.5, 13.0 / 3.0}, kExact));
}

TEST(Reference, MaskKinds) {
  const std::vector<uint8_t> mask = {1, 1, 0};
  EXPECT_THAT(Y(AverageLayer(1, 1), TestInput(1, {1, 2, 4}).Keep(MaskForm::kKey, mask)), Each(1.5));
  EXPECT_THAT(Y(AverageLayer(1, 1), TestInput(1, {1, 2, 4}).Drop(MaskForm::kKey, mask)), Each(4.0));
  const Doubles y =
      Y(AverageLayer(1, 1), TestInput(1, {1, 2}).Additive(MaskForm::kKey, {1.0f, 0.0f}));
  EXPECT_NEAR(y[0], 1.26894, 5e-6);
}

TEST(Reference, HeadsAreSplitAndMergedByFeature) {
  const TestInput input(4, {1, 2, 5, 6, 3, 4, 7, 8});
  TestInput own = input;
  own.Keep(MaskForm::kPair, {1, 0, 0, 1});
  EXPECT_TRUE(AllNear(Y(IdentityLayer(4, 2), own), Doubles{1, 2, 5, 6, 3, 4, 7, 8}, 0.0));
  EXPECT_TRUE(AllNear(Y(AverageLayer(4, 2), input), Doubles{2, 3, 6, 7, 2, 3, 6, 7}, 0.0));
}

TEST(Reference, ScoresAreScaledByTheWidthOfTheHead) {
  TestLayer layer = IdentityLayer(8, 2);
  const TestInput input(8, {2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0});
  EXPECT_NEAR(ReferenceByName(layer, input)["p.0"][0], 0.88080, 5e-6);
}

TEST(Reference, GroupedHeadsShareConsecutively) {
  LayerSpec spec = BasicSpec(1, 4);
  spec.kv_heads = 2;
  spec.dk = {1};
  spec.d_out = 4;
  TestLayer layer;
  layer.spec = *ResolveSpec(spec);
  layer.matrices.wq = {1, 1, 1, 1};
  layer.matrices.wk = {1, 1};
  layer.matrices.wv = {10, 20};
  layer.matrices.wo = Identity(4);
  EXPECT_TRUE(AllNear(Y(layer, TestInput(1, {1})), Doubles{10, 10, 20, 20}, 0.0));
  layer.spec.query_to_kv = {1, 0, 1, 0};
  EXPECT_TRUE(AllNear(Y(layer, TestInput(1, {1})), Doubles{20, 10, 20, 10}, 0.0));
}

TEST(Reference, RopeTurnsHalvesOrNeighbours) {
  TestLayer layer = IdentityLayer(4, 1);
  layer.spec.rope = RopeSpec{};
  layer.spec.rope->dims = 4;
  layer.spec.rope->layout = RopeLayout::kHalf;
  const TestInput input(4, {1, 2, 3, 4, 1, 2, 3, 4});
  EXPECT_TRUE(AllNear(ReferenceByName(layer, input)["q"],
                      Doubles{1, 2, 3, 4, -1.98411, 1.95990, 2.46238, 4.01980}, 5e-6));
  layer.spec.rope->layout = RopeLayout::kInterleaved;
  EXPECT_TRUE(AllNear(ReferenceByName(layer, input)["k"],
                      Doubles{1, 2, 3, 4, -1.14264, 1.92208, 2.95985, 4.02980}, 5e-6));
}

TEST(Reference, RopeLeavesTheOtherFeaturesAlone) {
  TestLayer layer = IdentityLayer(4, 1);
  layer.spec.rope = RopeSpec{};
  layer.spec.rope->dims = 2;
  layer.spec.rope->layout = RopeLayout::kHalf;
  const TestInput input = TestInput(4, {1, 2, 3, 4}).Positions({7});
  const Doubles q = ReferenceByName(layer, input)["q"];
  EXPECT_NEAR(q[0], std::cos(7.0) - 2.0 * std::sin(7.0), kExact);
  EXPECT_NEAR(q[1], 2.0 * std::cos(7.0) + std::sin(7.0), kExact);
  EXPECT_EQ(q[2], 3.0);
  EXPECT_EQ(q[3], 4.0);
}

TEST(Reference, CausalWindowCountsTheOwnToken) {
  TestLayer layer = AverageLayer(1, 1);
  layer.spec.mask = {true, 3};
  const TestInput input(1, {1, 2, 4, 8, 16});
  EXPECT_TRUE(AllNear(Y(layer, input), Doubles{1, 1.5, 7.0 / 3, 14.0 / 3, 28.0 / 3}, 1e-14));
  layer.spec.mask.window = 1;
  EXPECT_TRUE(AllNear(Y(layer, input), Doubles{1, 2, 4, 8, 16}, 0.0));
}

TEST(Reference, BidirectionalWindowIsInclusive) {
  TestLayer layer = AverageLayer(1, 1);
  layer.spec.mask = {false, 1};
  EXPECT_TRUE(
      AllNear(Y(layer, TestInput(1, {1, 2, 4, 8})), Doubles{1.5, 7.0 / 3, 14.0 / 3, 6}, 1e-14));
  layer.spec.mask.window = 0;
  EXPECT_TRUE(AllNear(Y(layer, TestInput(1, {1, 2, 4})), Doubles{1, 2, 4}, 0.0));
}

TEST(Reference, EmptySizes) {
  const TestLayer layer = WithOutputBias(AverageLayer(2, 1), {0.5f, 0.25f});
  EXPECT_THAT(Y(layer, TestInput(2, {})), IsEmpty());
  const TestInput no_keys = TestInput(2, {1, 2, 3, 4}).Memory(2, {}, {0});
  EXPECT_TRUE(AllNear(Y(layer, no_keys), Doubles{0.5, 0.25, 0.5, 0.25}, 0.0));
  const TestInput gap(2, {1, 2, 3, 4}, {1, 0, 1});
  EXPECT_TRUE(AllNear(Y(layer, gap), Doubles{1.5, 2.25, 3.5, 4.25}, 0.0));
  EXPECT_THAT(RunReference(layer, gap), SizeIs(3));
}

TEST(Reference, SequencesDoNotMix) {
  const TestInput input(1, {1, 3, 10, 20, 30}, {2, 3});
  EXPECT_TRUE(AllNear(Y(AverageLayer(1, 1), input), Doubles{2, 2, 20, 20, 20}, 1e-14));
}

TEST(Reference, MasksOfEachSequenceFollowOneAnother) {
  TestInput input(2, {1, 2, 3, 4, 10, 20}, {2, 1});
  input.Keep(MaskForm::kHead, {1, 0, 1, 1, /**/ 0, 1, 0, 0, /**/ 1, /**/ 0});
  EXPECT_TRUE(AllNear(Y(AverageLayer(2, 2), input), Doubles{1, 4, 2, 0, 10, 0}, 0.0));
}

TEST(Reference, ContributionsAddUpToTheOutput) {
  const TestLayer layer = RandomLayer(BasicSpec(6, 3), 1);
  auto named = ReferenceByName(layer, TestInput(6, RandomFloats(4 * 6, 2)));
  for (size_t token = 0; token < 4; ++token) {
    for (size_t o = 0; o < 6; ++o) {
      double sum = layer.matrices.bo[o];
      for (size_t head = 0; head < 3; ++head) {
        sum += named["contributions"][(token * 3 + head) * 6 + o];
      }
      EXPECT_NEAR(named["y"][token * 6 + o], sum, 1e-14);
    }
  }
}

TEST(Reference, GatesSelect) {
  TestLayer layer = IdentityLayer(2, 2);
  layer.matrices.bv = {kInfinity, 0};
  ReferenceOptions options;
  options.gates = {0, 1};
  EXPECT_TRUE(AllNear(Y(layer, TestInput(2, {1, 2}), options), Doubles{0, 2}, 0.0));
  options.gates = {1, 0.5};
  EXPECT_EQ(Y(IdentityLayer(2, 2), TestInput(2, {3, 4}), options)[1], 2.0);
}

TEST(Reference, ChosenRowsAreThoseOfTheWhole) {
  LayerSpec spec = BasicSpec(6, 3);
  spec.mask.causal = true;
  const TestLayer layer = RandomLayer(spec, 3);
  const TestInput input(6, RandomFloats(9 * 6, 4), {4, 2, 3});
  const std::vector<ReferenceSequence> all = RunReference(layer, input);
  ReferenceOptions options;
  options.rows = {1, 3, 8};
  const std::vector<ReferenceSequence> some = RunReference(layer, input, options);
  EXPECT_THAT(some[0].rows, ::testing::ElementsAre(1, 3));
  EXPECT_THAT(some[1].rows, IsEmpty());
  EXPECT_THAT(some[2].rows, ::testing::ElementsAre(2));
  for (size_t o = 0; o < 6; ++o) {
    EXPECT_EQ(some[0].y[6 + o], all[0].y[3 * 6 + o]);
    EXPECT_EQ(some[2].y[o], all[2].y[2 * 6 + o]);
  }
  for (size_t key = 0; key < 4; ++key) {
    EXPECT_EQ(some[0].p[(2 * 2 + 0) * 4 + key], all[0].p[(2 * 4 + 1) * 4 + key]);  // head 2, row 1
  }
}

TEST(Reference, RefusesWhatItCannotRead) {
  const LayerSpec spec = IdentityLayer(2, 1).spec;
  EXPECT_FALSE(ReadReferenceInput(spec, TestInput(2, {1, 2}, {2}).get()).ok());
  EXPECT_FALSE(ReadReferenceInput(spec, TestInput(2, {1, 2}).Positions({1, 2}).get()).ok());
  TestInput mask = TestInput(2, {1, 2}).Keep(MaskForm::kKey, {1, 1});
  EXPECT_FALSE(ReadReferenceInput(spec, mask.get()).ok());
}

}  // namespace
}  // namespace headwise
