// SPDX-License-Identifier: Apache-2.0
// Pruning under a norm over the whole width of q and k: what goes stays in the statistic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/layer/derive.h"
#include "tests/support/agreement.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

constexpr int64_t kWidth = 40, kHeads = 8;

// Heads 0 and 1 read key/value head 0, and so on; 72 and 36 features of q and k.
LayerSpec WidthNorm() {
  LayerSpec spec = BasicSpec(kWidth, kHeads);
  spec.kv_heads = 4;
  spec.dk = {18};
  spec.dv = {5};
  spec.mask.causal = true;
  spec.clip = 0.9;  // cuts a third of the features
  spec.rope = RopeSpec{.layout = RopeLayout::kHalf};
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kWidth};
  return spec;
}

TestInput Input() { return TestInput(kWidth, RandomFloats(140 * kWidth, 8), {73, 0, 67}); }

TestLayer Pruned(const TestLayer& layer, const std::vector<int64_t>& heads) {
  const auto pruned = PruneHeads({layer.spec, layer.matrices}, heads);
  EXPECT_TRUE(pruned.ok()) << pruned.status();
  return {pruned->spec, pruned->matrices};
}

std::vector<float> Y(Engine* engine, const TestLayer& layer, DType dtype) {
  Load(engine, "layer", layer, dtype);
  const auto result = ForwardNow(engine, MakeForward("layer", Input()));
  EXPECT_TRUE(result.ok()) << result.status();
  return ByName(result->outputs)["y"];
}

std::vector<float> AblatedY(Engine* engine, const TestLayer& layer, DType dtype,
                            const std::vector<int64_t>& heads) {
  Load(engine, "layer", layer, dtype);
  AblateRequest request;
  request.layer = "layer";
  request.input = Input().get();
  request.ablations.push_back({{Intervention{.heads = heads}}});
  request.return_all_ablation_y = true;
  const auto result = AblateNow(engine, std::move(request));
  EXPECT_TRUE(result.ok()) << result.status();
  return ByName(result->outputs)["ablation.0.y"];
}

// Largest |a - b| over the largest |of|.
double Share(const std::vector<float>& a, const std::vector<float>& b,
             const std::vector<float>& of) {
  std::vector<double> apart = Widened(a);
  for (size_t i = 0; i < apart.size(); ++i) apart[i] -= static_cast<double>(b[i]);
  return LargestMagnitude(apart) / LargestMagnitude(Widened(of));
}

TEST(DeriveWidthNorm, PrunedEqualsZeroAblatedOnEachPathInEachDType) {
  // One head; a group; most, so that the statistic takes several blocks; none.
  const std::vector<std::vector<int64_t>> sets = {{3}, {0, 1}, {7, 0, 1, 2, 5, 4}, {}};
  for (const bool biases : {true, false}) {
    const TestLayer layer = RandomLayer(WidthNorm(), 5, biases);
    for (const KernelPath path : MakeEngine()->available_kernels()) {
      const std::unique_ptr<Engine> engine = MakeEngine(2, {}, path);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
        const std::vector<float> y = Y(engine.get(), layer, dtype);
        double worst = 0.0;
        for (const std::vector<int64_t>& heads : sets) {
          if (!biases && heads != sets[1]) continue;
          const std::vector<float> pruned = Y(engine.get(), Pruned(layer, heads), dtype);
          const std::vector<float> ablated =
              heads.empty() ? y : AblatedY(engine.get(), layer, dtype, heads);
          worst = std::max(worst, Share(pruned, ablated, y));
        }
        const std::string what = absl::StrCat(KernelPathName(path), "_", DTypeName(dtype));
        EXPECT_LE(worst, dtype == DType::kF32 ? 1e-6 : 1e-2) << what << ", biases " << biases;
        RecordProperty(absl::StrCat(what, biases ? "_biased" : ""), absl::StrCat(worst));
      }
    }
  }
}

TEST(DeriveWidthNorm, PrunedLayersAgreeWithTheReference) {
  const TestLayer layer = Pruned(RandomLayer(WidthNorm(), 5), {0, 1, 6});
  for (const KernelPath path : MakeEngine()->available_kernels()) {
    const std::unique_ptr<Engine> engine = MakeEngine(2, {}, path);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      EXPECT_TRUE(AgreesWithReference(engine.get(), layer, Input(), dtype))
          << KernelPathName(path) << " " << DTypeName(dtype);
    }
  }
}

// The reference itself: q and k of the heads that stay are what they were.
TEST(DeriveWidthNorm, TheReferenceKeepsTheStatistic) {
  const TestLayer layer = RandomLayer(WidthNorm(), 5), pruned = Pruned(layer, {0, 1, 2, 4, 6});
  const auto before = ReferenceByName(layer, Input()), after = ReferenceByName(pruned, Input());
  const std::vector<int64_t> kept_q = {3, 5, 7}, kept_k = {1, 2, 3};
  for (const auto& [name, kept, heads] :
       {std::tuple("q", kept_q, int64_t{8}), std::tuple("k", kept_k, int64_t{4})}) {
    std::vector<double> expected;
    for (int64_t t = 0; t < 140; ++t) {
      for (const int64_t head : kept) {
        const auto begin = before.at(name).begin() + (t * heads + head) * 18;
        expected.insert(expected.end(), begin, begin + 18);
      }
    }
    EXPECT_TRUE(AllNear(after.at(name), expected, 1e-14)) << name;
  }
}

TEST(DeriveWidthNorm, PrunedAgainAddsToTheStatistic) {
  const TestLayer layer = RandomLayer(WidthNorm(), 6);
  const TestLayer once = Pruned(layer, {5, 0}), twice = Pruned(once, {1, 7});
  EXPECT_EQ(once.spec.q_statistic_rows(), 2 * 18);
  EXPECT_EQ(once.spec.k_statistic_rows(), 0);
  EXPECT_EQ(twice.spec.q_statistic_rows(), 4 * 18);
  EXPECT_EQ(twice.spec.k_statistic_rows(), 18);
  EXPECT_EQ(twice.matrices.bq_statistic.size(), size_t{4 * 18});
  const std::vector<float> y = RunY(layer, Input()), pruned = RunY(twice, Input());
  EXPECT_LE(Share(pruned, RunAblatedY(layer, Input(), {0, 1, 5, 7}), y), 1e-6);
  EXPECT_LE(Share(pruned, RunAblatedY(once, Input(), {1, 7}), y), 1e-6);
  // The statistic matters, and so do its biases.
  TestLayer wrong = twice;
  wrong.matrices.bq_statistic.clear();
  EXPECT_GT(Share(RunY(wrong, Input()), pruned, y), 1e-4);
  wrong = twice;
  wrong.spec.qk_norm->q_statistic_rows = 0;
  wrong.matrices.bq_statistic.clear();
  wrong.matrices.wq_statistic.clear();
  EXPECT_GT(Share(RunY(wrong, Input()), pruned, y), 1e-4);
}

// A bias may have come or gone between two prunings.
TEST(DeriveWidthNorm, AMissingBiasBesideAPresentOneIsZeros) {
  TestLayer layer = RandomLayer(WidthNorm(), 6);
  layer.matrices.bq.assign(layer.matrices.bq.size(), 0.0f);
  const TestLayer once = Pruned(layer, {0});
  TestLayer without = once;
  without.matrices.bq_statistic.clear();
  TestLayer gone = once;
  gone.matrices.bq.clear();
  const std::vector<float> y = RunY(Pruned(once, {4}), Input());
  EXPECT_EQ(Pruned(without, {4}).matrices.bq_statistic.size(), size_t{2 * 18});
  EXPECT_TRUE(SameBits(RunY(Pruned(without, {4}), Input()), y));
  EXPECT_EQ(Pruned(gone, {4}).matrices.bq_statistic.size(), size_t{2 * 18});
  EXPECT_TRUE(SameBits(RunY(Pruned(gone, {4}), Input()), y));
}

TEST(DeriveWidthNorm, OtherDerivationsKeepTheStatistic) {
  const TestLayer pruned = Pruned(RandomLayer(WidthNorm(), 7), {0, 1, 5});
  const LayerParts parts{pruned.spec, pruned.matrices};
  const auto permuted = PermuteHeads(parts, {7, 3, 2, 6, 4});
  ASSERT_TRUE(permuted.ok()) << permuted.status();
  const std::vector<float> y = RunY(pruned, Input());
  EXPECT_LE(Share(RunY({permuted->spec, permuted->matrices}, Input()), y, y), 2e-6);
  const auto folded = FoldGates(parts, {{3, 0.0}}, {});
  ASSERT_TRUE(folded.ok()) << folded.status();
  EXPECT_LE(
      Share(RunY({folded->spec, folded->matrices}, Input()), RunAblatedY(pruned, Input(), {3}), y),
      1e-6);
  for (const bool fused : {false, true}) {
    const auto tensors = ToTensors(parts, fused);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    std::vector<RoleTensor> roles;
    for (const DerivedTensor& tensor : tensors->tensors) {
      roles.push_back({tensor.role, tensor.name, tensor.tensor.view()});
    }
    const auto again = UnpackWeights(tensors->spec, roles);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(SameBits(RunY({pruned.spec, *again}, Input()), y)) << fused;
  }
}

}  // namespace
}  // namespace headwise
