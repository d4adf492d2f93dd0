// SPDX-License-Identifier: Apache-2.0
// Cases of public bug reports (A: head ablation, L: weight layouts) against the engine.
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

Ablation Zero(const std::vector<int64_t>& heads) {
  Intervention zero;
  zero.heads = heads;
  return {{zero}};
}

AblateRequest MakeAblate(const TestInput& input, std::vector<Ablation> ablations) {
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  request.ablations = std::move(ablations);
  request.return_all_ablation_y = true;
  return request;
}

TEST(Cases, A1_AblationActsBeforeTheOutputProjection) {
  TestLayer layer = IdentityLayer(4, 2);
  layer.matrices.wo = {0, 0, 1, 0, /**/ 0, 0, 0, 1, /**/ 1, 0, 0, 0, /**/ 0, 1, 0, 0};
  const TestInput input(4, {1, 2, 3, 4});
  EXPECT_THAT(RunY(layer, input), ElementsAre(3, 4, 1, 2));
  EXPECT_THAT(RunAblatedY(layer, input, {0}), ElementsAre(3, 4, 0, 0));
}

// Every kernel, one and nine sequences, with and without a mask: never the unablated numbers.
TEST(Cases, A2_AblationIsNeverIgnored) {
  for (const KernelPath path : MakeEngine()->available_kernels()) {
    const std::unique_ptr<Engine> engine = MakeEngine(2, {}, path);
    EXPECT_EQ(engine->kernel(), path);
    Load(engine.get(), "layer", IdentityLayer(4, 2));
    for (const size_t batch : {1u, 9u}) {
      Floats x;
      for (size_t b = 0; b < batch; ++b) x.insert(x.end(), {1, 2, 3, 4});
      TestInput input(4, x, std::vector<int64_t>(batch, 1));
      for (const bool masked : {false, true}) {
        if (masked) input.Keep(MaskForm::kKey, std::vector<uint8_t>(batch, 1));
        const auto result = AblateNow(engine.get(), MakeAblate(input, {Zero({1})}));
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_THAT(result->ablations.front().heads, ElementsAre(1));
        const Floats y = ByName(result->outputs)["ablation.0.y"];
        ASSERT_EQ(y.size(), batch * 4);
        for (size_t b = 0; b < batch; ++b) {
          EXPECT_EQ(Floats(y.begin() + static_cast<int64_t>(4 * b),
                           y.begin() + static_cast<int64_t>(4 * b + 4)),
                    (Floats{1, 2, 0, 0}));
        }
      }
    }
  }
}

TEST(Cases, A3_TheHeadIsAblatedAndNotItsScores) {
  const TestLayer layer = IdentityLayer(2, 2);
  const TestInput input(2, {2, 1, 4, 1});
  const Floats plain = RunY(layer, input);
  EXPECT_TRUE(AllNear(plain, Doubles{3.96403, 1, 3.99933, 1}, 1e-5));
  EXPECT_TRUE(AllNear(RunAblatedY(layer, input, {0}), Doubles{0, 1, 0, 1}, 1e-6));
}

TEST(Cases, A4_RequestsCarryNoState) {
  const TestInput input(4, {10, 20, 30, 40});
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", IdentityLayer(4, 4));
  const auto first = AblateNow(engine.get(), MakeAblate(input, {Zero({1})}));
  const auto second = AblateNow(engine.get(), MakeAblate(input, {Zero({2})}));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(ByName(first->outputs)["ablation.0.y"], ElementsAre(10, 0, 30, 40));
  EXPECT_THAT(ByName(second->outputs)["ablation.0.y"], ElementsAre(10, 20, 0, 40));
}

// Ids stay with their heads for life: in a layer whose axis holds heads 7 and 3, they are named so.
TEST(Cases, A4_HeadsAreNamedByTheirIds) {
  TestLayer layer = IdentityLayer(2, 2);
  layer.spec.head_ids = {7, 3};
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer);
  const TestInput input(2, {10, 20});
  const auto result = AblateNow(engine.get(), MakeAblate(input, {Zero({3})}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(ByName(result->outputs)["ablation.0.y"], ElementsAre(10, 0));
  EXPECT_THAT(result->ablations.front().heads, ElementsAre(3));
  EXPECT_EQ(AblateNow(engine.get(), MakeAblate(input, {Zero({0})})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Cases, A5_AllHeadsNoneAndHeadsThatAreNot) {
  TestLayer layer = IdentityLayer(4, 4);
  layer.matrices.bo = {1, 2, 3, 4};
  const TestInput input(4, {10, 20, 30, 40, 50, 60, 70, 80});
  EXPECT_THAT(RunAblatedY(layer, input, {0, 1, 2, 3}), ElementsAre(1, 2, 3, 4, 1, 2, 3, 4));
  EXPECT_TRUE(SameBits(RunAblatedY(layer, input, {0, 0}), RunAblatedY(layer, input, {0})));

  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer);
  for (const int64_t head : {int64_t{4}, int64_t{-1}}) {
    EXPECT_EQ(AblateNow(engine.get(), MakeAblate(input, {Zero({head})})).status().code(),
              absl::StatusCode::kInvalidArgument)
        << head;
  }
  const auto nothing = AblateNow(engine.get(), MakeAblate(input, {Ablation{}}));
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_TRUE(SameBits(ByName(nothing->outputs)["ablation.0.y"], RunY(layer, input)));
  EXPECT_EQ(nothing->ablations.front().pooled.l2, 0.0);
}

TEST(Cases, A8_ValueBiasGoesWithTheHeadOutputBiasStays) {
  TestLayer layer = IdentityLayer(4, 2);
  layer.matrices.bv = {1, 2, 3, 4};
  layer.matrices.bo = {10, 10, 10, 10};
  const TestInput input(4, {0, 0, 0, 0});
  EXPECT_THAT(RunY(layer, input), ElementsAre(11, 12, 13, 14));
  EXPECT_THAT(RunAblatedY(layer, input, {0}), ElementsAre(10, 10, 13, 14));
  const Floats shares = RunForward(layer, input, kOutputContributions)["contributions"];
  EXPECT_THAT(shares, ElementsAre(1, 2, 0, 0, 0, 0, 3, 4));
}

TEST(Cases, A9_AblationSelectsAndDoesNotMultiply) {
  TestLayer layer = IdentityLayer(2, 2);
  layer.matrices.wv = {3e38f, 0, 0, 1};
  const TestInput input(2, {10, 2});
  EXPECT_FALSE(std::isfinite(RunY(layer, input)[0]));
  EXPECT_THAT(RunAblatedY(layer, input, {0}), ElementsAre(0, 2));
}

TEST(Cases, L7_OrientationIsDeclared) {
  TestLayer layer = IdentityLayer(2, 1);
  layer.matrices.wo = {1, 2, 3, 4};
  const TestInput input(2, {1, 0});
  EXPECT_THAT(RunY(layer, input), ElementsAre(1, 3));
  layer.spec.orientation = Orientation::kInOut;
  EXPECT_THAT(RunY(layer, input), ElementsAre(1, 2));
  layer.spec.orientation = Orientation::kUnspecified;
  const std::unique_ptr<Engine> engine = MakeEngine();
  LoadOptions options;
  options.name = "layer";
  const LayerTensors tensors(layer);
  EXPECT_EQ(engine->LoadLayer(options, layer.spec, tensors.roles()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// y for x = [1, 0] of a layer with D 2 and heads of width 1 whose fused rows give 1, 2, 3, …
Floats RunFused(int64_t kv_heads, FusedLayout layout) {
  LayerSpec spec = BasicSpec(2, 2);
  spec.kv_heads = kv_heads;
  spec.fused_layout = layout;
  Floats rows;
  for (int64_t row = 1; row <= 2 + 2 * kv_heads; ++row) {
    rows.insert(rows.end(), {static_cast<float>(row), 0.0f});
  }
  const OwnedTensor qkv = FloatTensor({2 + 2 * kv_heads, 2}, rows);
  const OwnedTensor wo = FloatTensor({2, 2}, Identity(2));
  const std::unique_ptr<Engine> engine = MakeEngine();
  LoadOptions options;
  options.name = "layer";
  const absl::StatusOr<LayerInfo> loaded = engine->LoadLayer(
      options, spec,
      {{TensorRole::kQkvWeight, "qkv", qkv.view()}, {TensorRole::kOWeight, "o", wo.view()}});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  const auto result = ForwardNow(engine.get(), MakeForward("layer", TestInput(2, {1, 0})));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? ByName(result->outputs)["y"] : Floats{};
}

TEST(Cases, L8_FusedLayoutIsDeclared) {
  EXPECT_THAT(RunFused(2, FusedLayout::kPerHead), ElementsAre(3, 6));
  EXPECT_THAT(RunFused(2, FusedLayout::kBlocks), ElementsAre(5, 6));
  EXPECT_THAT(RunFused(1, FusedLayout::kPerGroup), ElementsAre(4, 4));
}

}  // namespace
}  // namespace headwise
