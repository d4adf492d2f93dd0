// SPDX-License-Identifier: Apache-2.0
#include "core/layer/derive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 36, kHeads = 6;

// A norm over all heads of q and of k, behind a clip that cuts a third of the features.
LayerSpec WidthNorm() {
  LayerSpec spec = BasicSpec(kWidth, kHeads);
  spec.kv_heads = 3;
  spec.mask.causal = true;
  spec.clip = 0.9;
  spec.rope = RopeSpec{.layout = RopeLayout::kHalf};
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kWidth};
  return spec;
}

// Layers that differ in what moves with a head.
std::vector<LayerSpec> Settings() {
  LayerSpec grouped = BasicSpec(kWidth, kHeads);
  grouped.kv_heads = 3;
  grouped.mask.causal = true;
  grouped.sinks = true;
  grouped.gates = {1, 2, 0.5f, -1, 3, 1};
  grouped.qk_norm = QkNormSpec{.span = QkNormSpan::kHeads};
  LayerSpec alibi = BasicSpec(kWidth, kHeads);
  alibi.position_bias = PositionBiasSpec{.slopes = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f}};
  LayerSpec buckets = BasicSpec(kWidth, kHeads);
  buckets.position_bias = PositionBiasSpec{.kind = PositionBiasKind::kT5Buckets,
                                           .buckets = 8,
                                           .max_distance = 16,
                                           .bidirectional = true};
  buckets.rope = RopeSpec{.layout = RopeLayout::kHalf};
  buckets.qk_norm = QkNormSpec{.kind = NormKind::kLayerNorm, .span = QkNormSpan::kHead};
  LayerSpec unequal = BasicSpec(kWidth, kHeads);
  unequal.dk = {4, 6, 4, 8, 2, 6};
  unequal.dv = {2, 8, 4, 4, 6, 3};
  LayerSpec unequal_width_norm = unequal;
  unequal_width_norm.qk_norm =
      QkNormSpec{.kind = NormKind::kRmsPlusOne, .span = QkNormSpan::kWidth};
  return {grouped, alibi, buckets, unequal, WidthNorm(), unequal_width_norm};
}

LayerParts PartsOf(const TestLayer& layer) { return {layer.spec, layer.matrices}; }

// Through the tensors, as a loader sees them.
TestLayer Reloaded(const LayerParts& parts, bool fused = false) {
  const auto tensors = ToTensors(parts, fused);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  std::vector<RoleTensor> roles;
  for (const DerivedTensor& tensor : tensors->tensors) {
    roles.push_back({tensor.role, tensor.name, tensor.tensor.view()});
  }
  auto spec = ResolveSpec(tensors->spec);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const auto matrices = UnpackWeights(*spec, roles);
  EXPECT_TRUE(matrices.ok()) << matrices.status();
  EXPECT_EQ(spec->fused_layout, fused ? FusedLayout::kBlocks : FusedLayout::kSeparate);
  spec->fused_layout = FusedLayout::kSeparate;  // as a TestLayer's numbers are
  return {*spec, *matrices};
}

TestInput Input() { return TestInput(kWidth, RandomFloats(40 * kWidth, 8), {33, 7}); }

TEST(Derive, PrunedEqualsZeroAblated) {
  for (const LayerSpec& spec : Settings()) {
    const TestLayer layer = RandomLayer(spec, 5);
    for (const std::vector<int64_t>& heads :
         std::vector<std::vector<int64_t>>{{0}, {0, 1}, {5, 2}, {1, 2, 3, 4, 5}, {}}) {
      const auto pruned = PruneHeads(PartsOf(layer), heads);
      ASSERT_TRUE(pruned.ok()) << pruned.status();
      const std::vector<float> y = RunY(Reloaded(*pruned), Input());
      const std::vector<float> ablated =
          heads.empty() ? RunY(layer, Input()) : RunAblatedY(layer, Input(), heads);
      const double largest = LargestMagnitude(Widened(RunY(layer, Input())));
      EXPECT_TRUE(AllNear(y, Widened(ablated), 1e-6 * largest)) << heads.size();
    }
  }
}

TEST(Derive, IdsAndGroupsAreKept) {
  const TestLayer layer = RandomLayer(Settings()[0], 5);
  auto once = PruneHeads(PartsOf(layer), {2, 3});
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_THAT(once->spec.head_ids, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(once->spec.query_to_kv, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(once->spec.kv_heads, 2);
  auto again = PruneHeads(*once, {4});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(again->spec.head_ids, ElementsAre(0, 1, 5));
  EXPECT_EQ(again->spec.kv_heads, 2);
  const absl::Status gone = PruneHeads(*again, {2}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(gone));
  EXPECT_THAT(std::string(gone.message()), HasSubstr("(0,1,5)"));
  const double largest = LargestMagnitude(Widened(RunY(layer, Input())));
  EXPECT_TRUE(AllNear(RunY(Reloaded(*again), Input()),
                      Widened(RunAblatedY(layer, Input(), {2, 3, 4})), 1e-6 * largest));
  // The derived layer is ablated by the old ids.
  EXPECT_TRUE(AllNear(RunAblatedY(Reloaded(*once), Input(), {4}),
                      Widened(RunAblatedY(layer, Input(), {2, 3, 4})), 1e-6 * largest));
}

TEST(Derive, PermutedHeadsGiveTheSameOutputAndTheirRowsAloneDoNot) {
  for (const LayerSpec& spec : Settings()) {
    const TestLayer layer = RandomLayer(spec, 6);
    const std::vector<int64_t> order = {4, 1, 5, 0, 3, 2};
    const auto permuted = PermuteHeads(PartsOf(layer), order);
    ASSERT_TRUE(permuted.ok()) << permuted.status();
    EXPECT_EQ(permuted->spec.head_ids, order);
    const std::vector<double> y = Widened(RunY(layer, Input()));
    EXPECT_TRUE(AllNear(RunY(Reloaded(*permuted), Input()), y, 2e-6 * LargestMagnitude(y)));
    if (!spec.dv.empty()) continue;
    TestLayer wrong = Reloaded(*permuted);
    wrong.matrices.wo = layer.matrices.wo;
    EXPECT_FALSE(AllNear(RunY(wrong, Input()), y, 1e-2 * LargestMagnitude(y)));
  }
}

TEST(Derive, SeparateEqualsCombined) {
  for (const LayerSpec& spec : Settings()) {
    const TestLayer layer = RandomLayer(spec, 7);
    const TestLayer fused = Reloaded(PartsOf(layer), /*fused=*/true);
    EXPECT_TRUE(SameBits(RunY(fused, Input()), RunY(Reloaded(PartsOf(layer)), Input())));
  }
  LayerSpec cross = BasicSpec(kWidth, kHeads);
  cross.d_memory = 10;
  EXPECT_TRUE(absl::IsInvalidArgument(ToTensors(PartsOf(RandomLayer(cross, 1)), true).status()));
}

TEST(Derive, PreNormStays) {
  LayerSpec spec = BasicSpec(kWidth, kHeads);
  spec.pre_norm = PreNormSpec{NormKind::kLayerNorm, 1e-3};
  const TestLayer layer = RandomLayer(spec, 4);
  ASSERT_EQ(layer.matrices.pre_norm_bias.size(), size_t{kWidth});
  const LayerParts parts = PartsOf(layer);
  for (const TestLayer& derived :
       {Reloaded(*PruneHeads(parts, {1})), Reloaded(*PermuteHeads(parts, {5, 4, 3, 2, 1, 0})),
        Reloaded(parts, /*fused=*/true)}) {
    ASSERT_TRUE(derived.spec.pre_norm.has_value());
    EXPECT_EQ(derived.spec.pre_norm->kind, NormKind::kLayerNorm);
    EXPECT_EQ(derived.spec.pre_norm->epsilon, 1e-3);
    EXPECT_TRUE(SameBits(derived.matrices.pre_norm, layer.matrices.pre_norm));
    EXPECT_TRUE(SameBits(derived.matrices.pre_norm_bias, layer.matrices.pre_norm_bias));
  }
  // It has no part in the output.
  spec.pre_norm.reset();
  EXPECT_TRUE(SameBits(RunY(layer, Input()), RunY(RandomLayer(spec, 4), Input())));
}

TEST(Derive, GatesAndMeansAreFolded) {
  const TestLayer layer = RandomLayer(BasicSpec(kWidth, kHeads), 9);
  const std::vector<float> added = RandomFloats(kWidth, 3);
  auto pruned = PruneHeads(PartsOf(layer), {1});
  ASSERT_TRUE(pruned.ok());
  auto folded = FoldGates(*pruned, {{0, 0.5}, {4, 1.5}}, added);
  ASSERT_TRUE(folded.ok()) << folded.status();
  const auto plain = ReferenceByName(layer, Input());
  std::vector<double> expected;
  for (size_t t = 0; t < 40; ++t) {
    for (size_t o = 0; o < kWidth; ++o) {
      double sum = static_cast<double>(layer.matrices.bo[o]) + static_cast<double>(added[o]);
      for (const size_t r : {0u, 2u, 3u, 4u, 5u}) {
        const double gate = r == 0 ? 0.5 : (r == 4 ? 1.5 : 1.0);
        sum += gate * plain.at("contributions")[(t * kHeads + r) * kWidth + o];
      }
      expected.push_back(sum);
    }
  }
  EXPECT_TRUE(AllNear(RunY(Reloaded(*folded), Input()), expected, 1e-5));
  EXPECT_TRUE(absl::IsInvalidArgument(FoldGates(*pruned, {{1, 1.0}}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FoldGates(*pruned, {{0, 1.0}, {0, 1.0}}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FoldGates(*pruned, {{0, std::nan("")}}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FoldGates(*pruned, {}, {added.data(), 3}).status()));
}

TEST(Derive, OwnGatesAreFolded) {
  const TestLayer layer = RandomLayer(Settings()[0], 9);
  const LayerParts folded = FoldOwnGates(PartsOf(layer));
  EXPECT_TRUE(folded.spec.gates.empty());
  const std::vector<double> y = Widened(RunY(layer, Input()));
  EXPECT_TRUE(AllNear(RunY(Reloaded(folded), Input()), y, 2e-6 * LargestMagnitude(y)));
  EXPECT_FALSE(SameBits(folded.matrices.wo, layer.matrices.wo));
}

TEST(Derive, RefusalsNameTheRule) {
  const TestLayer layer = RandomLayer(BasicSpec(kWidth, kHeads), 9);
  EXPECT_THAT(std::string(PruneHeads(PartsOf(layer), {0, 1, 2, 3, 4, 5}).status().message()),
              HasSubstr("must leave a head"));
  EXPECT_TRUE(absl::IsInvalidArgument(PermuteHeads(PartsOf(layer), {0, 1, 2, 3, 4}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(PermuteHeads(PartsOf(layer), {0, 1, 2, 3, 4, 4}).status()));
}

// Cases A4a and A10 of the list.
TEST(Cases, A4_PrunedHeadsKeepTheirIds) {
  const TestInput input(4, {10, 20, 30, 40});
  auto layer = PruneHeads(PartsOf(IdentityLayer(4, 4)), {1});
  ASSERT_TRUE(layer.ok());
  EXPECT_THAT(RunY(Reloaded(*layer), input), ElementsAre(10, 0, 30, 40));
  layer = PruneHeads(*layer, {2});
  ASSERT_TRUE(layer.ok());
  EXPECT_THAT(RunY(Reloaded(*layer), input), ElementsAre(10, 0, 0, 40));
  EXPECT_TRUE(absl::IsInvalidArgument(PruneHeads(*layer, {1, 2}).status()));
}

TEST(Cases, A10_WhatIsPerHeadMovesWithIt) {
  auto layer = PruneHeads(PartsOf(AverageLayer(3, 3)), {0});
  ASSERT_TRUE(layer.ok());
  TestInput input(3, {1, 1, 1, 2, 2, 2, 4, 4, 4});
  // Of the heads that are left, the first sees key 1 only, the second key 2 only.
  std::vector<uint8_t> keep;
  for (const int visible : {1, 2}) {
    for (int query = 0; query < 3; ++query) {
      for (int key = 0; key < 3; ++key) keep.push_back(key == visible ? 1 : 0);
    }
  }
  input.Keep(MaskForm::kHead, keep);
  EXPECT_THAT(RunY(Reloaded(*layer), input), ElementsAre(0, 2, 4, 0, 2, 4, 0, 2, 4));
}

}  // namespace
}  // namespace headwise
