// SPDX-License-Identifier: Apache-2.0
// Sweeps, interactions and prune plans against outputs of the layer itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "core/layer/derive.h"
#include "core/layer/layer_bytes.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr int64_t kWidth = 24, kHeads = 4;
const std::vector<int64_t> kLengths = {5, 9, 1, 7, 6, 8, 3, 4, 0, 12};
constexpr int64_t kTokens = 55;

class Sweeps : public ::testing::Test {
 protected:
  Sweeps() {
    LayerSpec spec = BasicSpec(kWidth, kHeads);
    spec.kv_heads = 2;
    spec.head_ids = {3, 8, 1, 6};
    Load(engine_.get(), "layer", RandomLayer(spec, 3));
  }

  absl::StatusOr<AblateResult> Try(AblateRequest request) {
    request.layer = "layer";
    request.input = input_.get();
    return AblateNow(engine_.get(), std::move(request));
  }
  AblateResult Swept(SweepKind sweep, SweepTarget target = SweepTarget::kHeads,
                     std::vector<int64_t> order = {}) {
    AblateRequest request;
    request.sweep = sweep;
    request.target = target;
    request.order = std::move(order);
    auto result = Try(std::move(request));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : AblateResult{};
  }
  // The figure of one explicit set.
  double Error(const std::vector<int64_t>& heads) {
    AblateRequest request;
    request.ablations = {{{{.heads = heads}}}};
    auto result = Try(std::move(request));
    EXPECT_TRUE(result.ok()) << result.status();
    return *result->ablations[0].pooled.relative_l2;
  }

  std::unique_ptr<Engine> engine_ = MakeEngine(2);
  TestInput input_{kWidth, RandomFloats(kTokens* kWidth, 4), kLengths};
};

std::vector<std::vector<int64_t>> HeadsOf(const AblateResult& result) {
  std::vector<std::vector<int64_t>> heads;
  for (const AblationEffect& effect : result.ablations) heads.push_back(effect.heads);
  return heads;
}

TEST_F(Sweeps, SetsAreWhatTheirNamesSay) {
  EXPECT_THAT(HeadsOf(Swept(SweepKind::kKeepOne)),
              ElementsAre(ElementsAre(3, 8, 6), ElementsAre(8, 1, 6), ElementsAre(3, 8, 1),
                          ElementsAre(3, 1, 6)));
  EXPECT_THAT(HeadsOf(Swept(SweepKind::kPairs, SweepTarget::kGroups)),
              ElementsAre(ElementsAre(3, 8, 1, 6)));
  EXPECT_THAT(HeadsOf(Swept(SweepKind::kCumulative, SweepTarget::kHeads, {6, 3})),
              ElementsAre(ElementsAre(6), ElementsAre(3, 6)));
  EXPECT_EQ(HeadsOf(Swept(SweepKind::kPairs)).size(), 6u);
}

TEST_F(Sweeps, FiguresAreThoseOfTheSetsAlone) {
  for (const SweepKind sweep : {SweepKind::kKeepOne, SweepKind::kPairs, SweepKind::kCumulative}) {
    for (const AblationEffect& effect : Swept(sweep).ablations) {
      EXPECT_NEAR(*effect.pooled.relative_l2, Error(effect.heads), 1e-12);
    }
  }
}

TEST_F(Sweeps, GreedyDropsWhatCostsLeast) {
  const AblateResult result = Swept(SweepKind::kCumulative);
  ASSERT_EQ(result.ablations.size(), 4u);
  std::vector<int64_t> set;
  for (const AblationEffect& effect : result.ablations) {
    double least = 1e9;
    for (const int64_t head : {1, 3, 6, 8}) {
      if (std::find(set.begin(), set.end(), head) != set.end()) continue;
      std::vector<int64_t> tried = set;
      tried.push_back(head);
      least = std::min(least, Error(tried));
    }
    EXPECT_NEAR(*effect.pooled.relative_l2, least, 1e-9);
    set = effect.heads;
    // Told as one intervention on the whole set.
    ASSERT_EQ(effect.ablation.interventions.size(), 1u);
    EXPECT_THAT(effect.ablation.interventions[0].heads, UnorderedElementsAreArray(set));
  }
}

TEST_F(Sweeps, InteractionsFollowFromTheSumsOfSingles) {
  const AblateResult pairs = Swept(SweepKind::kPairs);
  ASSERT_EQ(pairs.interactions.size(), 6u);
  for (const Interaction& pair : pairs.interactions) {
    const double a = Error({pair.heads[0]}), b = Error({pair.heads[1]}), ab = Error(pair.heads);
    EXPECT_NEAR(*pair.sums.relative_l2(), ab, 1e-9);
    EXPECT_NEAR(*pair.sums.relative_l2_if_orthogonal(), std::sqrt(a * a + b * b), 1e-9);
    EXPECT_NEAR(*pair.sums.interaction(), (ab * ab - a * a - b * b) / (2 * a * b), 1e-6);
  }
}

TEST_F(Sweeps, MeanSweepsShareOneSource) {
  AblateRequest request;
  request.sweep = SweepKind::kPairs;
  request.sweep_intervention.kind = InterventionKind::kMean;
  auto result = Try(std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->ablations.size(), 6u);
  EXPECT_EQ(result->forwards, 1);
  EXPECT_TRUE(result->from_gram);
}

// y' of every step by hand: fitted without a fold's sequences, judged on them.
TEST_F(Sweeps, PrunePlanIsJudgedOnHeldOutFolds) {
  AblateRequest request;
  request.sweep = SweepKind::kPrunePlan;
  request.folds = 3;
  auto result = Try(std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(result->prune_plan.has_value());
  const PrunePlan& plan = *result->prune_plan;
  EXPECT_EQ(plan.folds, 3);
  ASSERT_EQ(plan.steps.size(), 3u);
  const auto plain = ByName(
      ForwardNow(engine_.get(), MakeForward("layer", input_, kOutputY | kOutputContributions))
          ->outputs);
  const std::vector<float>&c = plain.at("contributions"), &y = plain.at("y");
  const auto contribution = [&](int64_t t, int64_t r, int64_t d) {
    return static_cast<double>(c[static_cast<size_t>((t * kHeads + r) * kWidth + d)]);
  };
  // One head dropped, ungated and mean-folded, straight from the contributions.
  double y_sq = 0.0, ungated = 0.0, folded = 0.0;
  for (int64_t fold = 0; fold < 3; ++fold) {
    std::vector<int64_t> train, test;
    int64_t row = 0, filled = 0;
    for (const int64_t length : kLengths) {
      for (int64_t t = 0; t < length; ++t) (filled % 3 == fold ? test : train).push_back(row++);
      filled += length > 0 ? 1 : 0;
    }
    int64_t best = -1;
    double least = 1e30;
    for (const int64_t r : {2, 0, 3, 1}) {  // by id
      double sum = 0.0;
      for (const int64_t t : train) {
        for (int64_t d = 0; d < kWidth; ++d) sum += contribution(t, r, d) * contribution(t, r, d);
      }
      if (sum < least) {
        least = sum;
        best = r;
      }
    }
    for (int64_t d = 0; d < kWidth; ++d) {
      double mean = 0.0;
      for (const int64_t t : train)
        mean += contribution(t, best, d) / static_cast<double>(train.size());
      for (const int64_t t : test) {
        const double lost = contribution(t, best, d);
        ungated += lost * lost;
        folded += (lost - mean) * (lost - mean);
        y_sq += std::pow(static_cast<double>(y[static_cast<size_t>(t * kWidth + d)]), 2);
      }
    }
  }
  EXPECT_NEAR(*plan.steps[0].errors.ungated, std::sqrt(ungated / y_sq), 1e-6);
  EXPECT_NEAR(*plan.steps[0].errors.mean_folded, std::sqrt(folded / y_sq), 1e-6);
  EXPECT_EQ(plan.steps[0].dropped, std::vector<int64_t>{plan.order[0]});
  EXPECT_EQ(plan.steps[0].gates.size(), 3u);
  EXPECT_EQ(plan.steps[0].parameters_saved, 2 * 24 * 6);
  for (const PruneStep& step : plan.steps) EXPECT_FALSE(step.ridge);
}

// What a plan says is saved is what the pruned layer lacks.
TEST_F(Sweeps, PrunePlanSavesWhatPruningSaves) {
  for (const std::optional<QkNormSpec>& norm :
       {std::optional<QkNormSpec>(), std::optional(QkNormSpec{.span = QkNormSpan::kWidth})}) {
    LayerSpec spec = BasicSpec(kWidth, kHeads);
    spec.kv_heads = 2;
    spec.qk_norm = norm;
    const TestLayer layer = RandomLayer(spec, 4, /*biases=*/false);
    Load(engine_.get(), "layer", layer);
    AblateRequest request;
    request.sweep = SweepKind::kPrunePlan;
    request.folds = 2;
    const auto result = Try(std::move(request));
    ASSERT_TRUE(result.ok()) << result.status();
    const auto parameters = [](const LayerSpec& s) {
      return ParameterBytes(s, LayerVectors(), DType::kF32) / 4;
    };
    for (const PruneStep& step : result->prune_plan->steps) {
      const auto pruned = PruneHeads({layer.spec, layer.matrices}, step.dropped);
      ASSERT_TRUE(pruned.ok()) << pruned.status();
      EXPECT_EQ(step.parameters_saved, parameters(layer.spec) - parameters(pruned->spec));
    }
  }
}

TEST_F(Sweeps, RefusalsNameTheRuleAndTheValue) {
  AblateRequest request;
  request.sweep = SweepKind::kCumulative;
  request.order = {2};
  EXPECT_THAT(std::string(Try(request).status().message()), HasSubstr("was 2"));
  request.order = {3, 3};
  EXPECT_TRUE(absl::IsInvalidArgument(Try(request).status()));
  request.sweep = SweepKind::kPairs;
  EXPECT_TRUE(absl::IsInvalidArgument(Try(request).status()));
  request.order = {};
  request.sweep = SweepKind::kPrunePlan;
  request.folds = 10;
  EXPECT_THAT(std::string(Try(request).status().message()), HasSubstr("[2, 9]"));
  request.folds = 2;
  request.sweep_intervention.token_begin = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(Try(request).status()));
  request.sweep = SweepKind::kLeaveOneOut;
  request.bootstrap.level = 1.0;
  EXPECT_TRUE(absl::IsInvalidArgument(Try(request).status()));
}

TEST_F(Sweeps, IntervalsHoldTheFigureAndFewSequencesGiveRanges) {
  for (const AblationEffect& effect : Swept(SweepKind::kLeaveOneOut).ablations) {
    ASSERT_TRUE(effect.intervals.relative_l2.has_value());
    const Interval& interval = *effect.intervals.relative_l2;
    EXPECT_EQ(interval.method, IntervalMethod::kBca);
    EXPECT_LT(interval.low, *effect.pooled.relative_l2);
    EXPECT_GT(interval.high, *effect.pooled.relative_l2);
  }
  input_ = TestInput(kWidth, RandomFloats(8 * kWidth, 4), {3, 5});
  for (const AblationEffect& effect : Swept(SweepKind::kLeaveOneOut).ablations) {
    const Interval& interval = *effect.intervals.l2;
    EXPECT_EQ(interval.method, IntervalMethod::kRange);
    EXPECT_EQ(interval.low, std::min(*effect.per_sequence[0].l2, *effect.per_sequence[1].l2));
    EXPECT_EQ(interval.high, std::max(*effect.per_sequence[0].l2, *effect.per_sequence[1].l2));
  }
}

}  // namespace
}  // namespace headwise
