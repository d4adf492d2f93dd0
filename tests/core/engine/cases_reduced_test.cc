// SPDX-License-Identifier: Apache-2.0
// Cases of public bug reports (Q: int8 and bf16; N: what more of attention's numerics) against the
// engine.
#include <future>

#include "core/checkpoint/family.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/agreement.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Floats = std::vector<float>;

// As exact as f32 scales of whole numbers are.
auto Near(float value) { return ::testing::FloatNear(value, 1e-6f * value); }

Floats RunYIn(DType dtype, const TestLayer& layer, const TestInput& input) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Load(engine.get(), "layer", layer, dtype);
  const auto answer = ForwardNow(engine.get(), MakeForward("layer", input));
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? ByName(answer->outputs)["y"] : Floats();
}

// One head of width `width` that hands v on as it is, W_v as given [width, d_model].
TestLayer ValueLayer(int64_t d_model, int64_t width, const Floats& wv, const Floats& wo) {
  TestLayer layer = RandomLayer(BasicSpec(d_model, 1), 1, /*biases=*/false);
  layer.spec.dk = layer.spec.dv = {width};
  const auto zeros = static_cast<size_t>(width * d_model);
  layer.matrices.wq = layer.matrices.wk = Floats(zeros, 0.0f);
  layer.matrices.wv = wv;
  layer.matrices.wo = wo;
  return layer;
}

// The largest numbers of 8 bits: sums of pairs in 16 bits would stop at 32,767, or give 510 when
// the shift is taken off afterwards. v is kept in bf16, to 1 in 256.
TEST(Cases, Q1_SumsOf8BitsDoNotSaturate) {
  const TestLayer layer = ValueLayer(4, 4, Floats(16, 127.0f), Identity(4));
  const Floats y = RunYIn(DType::kI8, layer, TestInput(4, Floats(4, 127.0f)));
  EXPECT_THAT(y, Each(::testing::FloatNear(64516.0f, 64516.0f / 128)));
}

TEST(Cases, Q2_EachRowHasItsOwnScale) {
  const TestLayer layer = ValueLayer(2, 2, Identity(2), Identity(2));
  const Floats request = {1.0f, 0.3f};
  const Floats alone = RunYIn(DType::kI8, layer, TestInput(2, request));
  EXPECT_THAT(alone,
              ElementsAre(::testing::FloatEq(1.0f), ::testing::FloatNear(38.0f / 127, 1e-6f)));
  // Beside a hundred: in the same sequence (which is causal, so that it isn't seen), in another
  // one.
  TestInput both(2, {1.0f, 0.3f, 100.0f, 100.0f}, {1, 1});
  TestInput behind(2, {1.0f, 0.3f, 100.0f, 100.0f});
  behind.Causal(CausalMode::kTopLeft);
  for (const TestInput& input : {both, behind}) {
    const Floats y = RunYIn(DType::kI8, layer, input);
    ASSERT_EQ(y.size(), 4u);
    EXPECT_TRUE(SameBits(Floats{y[0], y[1]}, alone));
  }
}

TEST(Cases, Q4_ScalesOfWeightsFollowTheOutputChannel) {
  const TestLayer square = ValueLayer(2, 2, {127, 127, 1, 1}, Identity(2));
  EXPECT_THAT(RunYIn(DType::kI8, square, TestInput(2, {1, 1})), ElementsAre(Near(254), Near(2)));
  const TestLayer wide = ValueLayer(3, 2, {127, 127, 127, 1, 1, 1}, {1, 0, 0, 1, 0, 0});
  EXPECT_THAT(RunYIn(DType::kI8, wide, TestInput(3, {1, 1, 0})),
              ElementsAre(Near(254), Near(2), 0.0f));
}

TEST(Cases, Q5_WeightsOfAttentionAreNoBytes) {
  for (const int64_t keys : {1, 256, 1024}) {
    const Floats y = RunYIn(DType::kI8, AverageLayer(1, 1),
                            TestInput(1, Floats(static_cast<size_t>(keys), 1.0f)));
    EXPECT_THAT(y, Each(::testing::FloatNear(1.0f, 0.002f))) << keys;
  }
}

TEST(Cases, Q6_SumsAreKeptInF32) {
  for (const int64_t width : {512, 6144}) {
    const auto count = static_cast<size_t>(width);
    const TestLayer layer = ValueLayer(width, 1, Floats(count, 1.0f), Floats(count, 1.0f));
    const Floats y = RunYIn(DType::kBF16, layer, TestInput(width, Floats(count, 1.0f)));
    EXPECT_THAT(y, Each(static_cast<float>(width)));
  }
}

TEST(Cases, N14_SlopesOfAnyNumberOfHeads) {
  EXPECT_THAT(AlibiSlopes(8, 8.0), ElementsAre(1.0f / 2, 1.0f / 4, 1.0f / 8, 1.0f / 16, 1.0f / 32,
                                               1.0f / 64, 1.0f / 128, 1.0f / 256));
  const Floats six = AlibiSlopes(6, 8.0);
  EXPECT_THAT(six, ElementsAre(1.0f / 4, 1.0f / 16, 1.0f / 64, 1.0f / 256, 1.0f / 2, 1.0f / 8));
  // And they reach the scores: one key back costs a slope.
  TestLayer layer = AverageLayer(6, 6);
  layer.spec.position_bias = PositionBiasSpec{.slopes = six};
  const Floats scores =
      RunForward(layer, TestInput(6, Floats(12, 1.0f)), kOutputScores).at("scores.0");
  ASSERT_EQ(scores.size(), 24u);
  for (size_t head = 0; head < 6; ++head) EXPECT_FLOAT_EQ(scores[head * 4 + 2], -six[head]);
}

TEST(Cases, N23_SameBitsForAnyThreadsAndUnderLoad) {
  const TestLayer layer = RandomLayer(BasicSpec(64, 4), 23);
  const TestInput input(64, RandomFloats(100 * 64, 1)), other(64, RandomFloats(40 * 64, 2));
  const Floats expected = RunY(layer, input);
  for (const int64_t threads : {1, 2, 4}) {
    const std::unique_ptr<Engine> engine = MakeEngine(threads);
    Load(engine.get(), "layer", layer);
    for (int i = 0; i < 100; ++i) {
      std::promise<void> loaded;
      engine->Forward(MakeForward("layer", other),
                      [&](const absl::StatusOr<ForwardResult>&) { loaded.set_value(); });
      const auto answer = ForwardNow(engine.get(), MakeForward("layer", input));
      ASSERT_TRUE(answer.ok()) << answer.status();
      ASSERT_TRUE(SameBits(ByName(answer->outputs).at("y"), expected)) << threads << ", " << i;
      loaded.get_future().wait();
    }
  }
}

TEST(Cases, N24_EveryConfigurationTakesTheSamePath) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  for (const bool biases : {false, true}) {
    for (const int64_t heads : {1, 3, 5}) {
      const TestLayer layer = RandomLayer(BasicSpec(15, heads), 24, biases);
      for (const int64_t batch : {1, 3}) {
        const std::vector<int64_t> lengths(static_cast<size_t>(batch), 6);
        const Floats x = RandomFloats(batch * 6 * 15, 25);
        std::vector<uint8_t> mask;
        for (int64_t i = 0; i < batch * 6; ++i) mask.push_back(i % 6 < 4 ? 1 : 0);
        const TestInput plain(15, x, lengths);
        TestInput padded(15, x, lengths), causal(15, x, lengths);
        padded.Keep(MaskForm::kKey, mask);
        causal.Causal(CausalMode::kTopLeft);
        for (const TestInput& input : {plain, padded, causal}) {
          EXPECT_TRUE(AgreesWithReference(engine.get(), layer, input))
              << biases << " " << heads << " " << batch;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headwise
