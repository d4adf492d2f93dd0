// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/ablation/effects.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerSpec Grouped() {
  LayerSpec spec = BasicSpec(16, 4);
  spec.kv_heads = 2;
  return *ResolveSpec(spec);
}

AblateRequest One(Intervention intervention) {
  AblateRequest request;
  request.ablations = {{{std::move(intervention)}}};
  return request;
}

absl::Status PlanStatus(const AblateRequest& request, std::vector<int64_t> lengths = {3, 5}) {
  return PlanAblations(Grouped(), lengths, request, 100).status();
}

TEST(AblationPlan, GroupsMeanAllTheirQueryHeads) {
  auto plan = PlanAblations(Grouped(), {3, 5}, One({.groups = {1}}), 100);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->ablations[0].heads, ElementsAre(2, 3));
}

TEST(AblationPlan, SegmentsAreCutWhereRangesBegin) {
  Intervention early{.heads = {0}};
  early.token_end = 2;
  Intervention late{.kind = InterventionKind::kScale, .heads = {0}, .scale = 0.5};
  late.token_begin = 1;
  late.sequences = {1};
  AblateRequest request;
  request.ablations = {{{early, late}}};
  auto plan = PlanAblations(Grouped(), {3, 5}, request, 100);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::tuple<int64_t, int64_t, int64_t, float>> segments;
  std::vector<HeadAction> actions(4);
  for (const TokenSegment& s : plan->segments) {
    plan->Actions(0, 0, s, &actions);
    segments.emplace_back(s.sequence, s.begin, s.end, actions[0].factor);
    EXPECT_FALSE(actions[1].acts());
  }
  // The later intervention wins where both act.
  EXPECT_THAT(segments, ElementsAre(std::tuple(0, 0, 2, 0.0f), std::tuple(0, 2, 3, 1.0f),
                                    std::tuple(1, 0, 1, 0.0f), std::tuple(1, 1, 2, 0.5f),
                                    std::tuple(1, 2, 5, 0.5f)));
}

TEST(AblationPlan, LeaveOneOutIsByIdWhateverTheAxis) {
  LayerSpec spec = BasicSpec(16, 4);
  spec.head_ids = {7, 1, 9, 3};
  AblateRequest request;
  request.sweep = SweepKind::kLeaveOneOut;
  auto plan = PlanAblations(*ResolveSpec(spec), {2}, request, 100);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<int64_t> ids;
  for (const ResolvedAblation& ablation : plan->ablations) ids.push_back(ablation.heads[0]);
  EXPECT_THAT(ids, ElementsAre(1, 3, 7, 9));
  EXPECT_THAT(plan->ablations[0].interventions[0].heads, ElementsAre(1));
}

TEST(AblationPlan, RefusalsNameTheRuleAndTheValue) {
  EXPECT_THAT(std::string(PlanStatus(One({.heads = {4}})).message()), HasSubstr("was 4"));
  EXPECT_TRUE(absl::IsInvalidArgument(PlanStatus(One({.heads = {-1}}))));
  EXPECT_TRUE(absl::IsInvalidArgument(PlanStatus(One({.groups = {2}}))));
  EXPECT_TRUE(absl::IsInvalidArgument(PlanStatus(One({}))));
  Intervention past{.heads = {0}};
  past.token_begin = 5;
  EXPECT_THAT(std::string(PlanStatus(One(past)).message()), HasSubstr("[5, end)"));
  Intervention empty{.heads = {0}};
  empty.token_begin = 2;
  empty.token_end = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(PlanStatus(One(empty))));
  Intervention nobody{.heads = {0}};
  nobody.sequences = {2};
  EXPECT_TRUE(absl::IsInvalidArgument(PlanStatus(One(nobody))));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(absl::IsInvalidArgument(
      PlanStatus(One({.kind = InterventionKind::kScale, .heads = {0}, .scale = nan}))));
  EXPECT_TRUE(absl::IsInvalidArgument(PlanStatus(One({.heads = {0}}), {})));
  AblateRequest both = One({.heads = {0}});
  both.sweep = SweepKind::kLeaveOneOut;
  EXPECT_TRUE(absl::IsInvalidArgument(PlanStatus(both)));
  AblateRequest many;
  many.ablations.resize(101);
  EXPECT_TRUE(absl::IsResourceExhausted(PlanStatus(many)));
}

// ‖y - y'‖ and the cosine straight from two outputs.
Effect EffectOf(const std::vector<float>& y, const std::vector<float>& ablated) {
  double yy = 0.0, aa = 0.0, ya = 0.0, dd = 0.0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double p = static_cast<double>(y[i]), q = static_cast<double>(ablated[i]);
    yy += p * p;
    aa += q * q;
    ya += p * q;
    dd += (p - q) * (p - q);
  }
  return {std::sqrt(dd), std::sqrt(dd / yy), ya / std::sqrt(yy * aa)};
}

TEST(Ablate, EffectsAgreeWithTheOutputsThemselves) {
  auto engine = MakeEngine(2);
  Load(engine.get(), "layer", RandomLayer(Grouped(), 3));
  const TestInput input(16, RandomFloats(8 * 16, 4), {3, 5});
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  Intervention part{.kind = InterventionKind::kScale, .heads = {1, 2}, .scale = -0.5};
  part.token_begin = 1;
  part.token_end = 3;
  request.ablations = {{{{.heads = {0}}}}, {{part}}, {{{.groups = {0, 1}}}}, {{}}};
  request.return_y = true;
  request.return_all_ablation_y = true;
  auto result = AblateNow(engine.get(), std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  const auto outputs = ByName(result->outputs);
  for (int a = 0; a < 4; ++a) {
    const Effect expected =
        EffectOf(outputs.at("y"), outputs.at("ablation." + std::to_string(a) + ".y"));
    const Effect& effect = result->ablations[static_cast<size_t>(a)].pooled;
    EXPECT_NEAR(*effect.l2, *expected.l2, 1e-5) << a;
    EXPECT_NEAR(*effect.relative_l2, *expected.relative_l2, 1e-6) << a;
    EXPECT_NEAR(*effect.cosine, *expected.cosine, 1e-6) << a;
  }
  // Nothing ablated: the plain output, bit for bit.
  EXPECT_EQ(outputs.at("ablation.3.y"), outputs.at("y"));
  EXPECT_EQ(*result->ablations[3].pooled.l2, 0.0);
}

TEST(Ablate, FactorOneIsNoAblation) {
  auto engine = MakeEngine(1);
  Load(engine.get(), "layer", RandomLayer(Grouped(), 3));
  const TestInput input(16, RandomFloats(8 * 16, 4));
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  request.ablations = {{{{.kind = InterventionKind::kScale, .heads = {0, 1, 2, 3}, .scale = 1.0}}}};
  request.return_y = true;
  request.return_all_ablation_y = true;
  auto result = AblateNow(engine.get(), std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  const auto outputs = ByName(result->outputs);
  EXPECT_EQ(outputs.at("ablation.0.y"), outputs.at("y"));
}

TEST(Ablate, UndefinedFiguresAreAbsentWithAReason) {
  auto engine = MakeEngine(1);
  TestLayer layer = IdentityLayer(4, 2);
  Load(engine.get(), "layer", layer);
  std::vector<float> x(3 * 4, 0.0f);
  for (size_t i = 4; i < 8; ++i) x[i] = 1.0f;
  x[8] = std::numeric_limits<float>::quiet_NaN();
  AblateRequest request;
  request.layer = "layer";
  const TestInput input(4, x, {1, 1, 1});
  request.input = input.get();
  request.sweep = SweepKind::kLeaveOneOut;
  auto result = AblateNow(engine.get(), std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  const AblationEffect& effect = result->ablations[0];
  EXPECT_FALSE(effect.pooled.relative_l2.has_value());
  EXPECT_FALSE(effect.per_sequence[0].relative_l2.has_value());
  EXPECT_TRUE(effect.per_sequence[1].relative_l2.has_value());
  EXPECT_FALSE(effect.per_sequence[2].l2.has_value());
  EXPECT_EQ(effect.undefined_sequences, 2);
  EXPECT_FALSE(effect.undefined_reason.empty());
}

TEST(Ablate, GramIsTheSumOfProductsOfContributions) {
  auto engine = MakeEngine(2);
  Load(engine.get(), "layer", RandomLayer(Grouped(), 3));
  const TestInput input(16, RandomFloats(40 * 16, 4), {33, 7});
  const auto plain =
      ByName(ForwardNow(engine.get(), MakeForward("layer", input, kOutputY | kOutputContributions))
                 ->outputs);
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  request.sweep = SweepKind::kLeaveOneOut;
  request.return_gram = true;
  auto result = AblateNow(engine.get(), std::move(request));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->outputs.size(), 3u);
  EXPECT_EQ(result->outputs[0].name, "gram");
  EXPECT_EQ(result->outputs[0].shape, (Shape{2, 4, 4}));
  const auto* gram = reinterpret_cast<const double*>(result->outputs[0].data.data());
  const auto* b = reinterpret_cast<const double*>(result->outputs[1].data.data());
  const std::vector<float>& c = plain.at("contributions");
  const std::vector<float>& y = plain.at("y");
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t q = 0; q < 4; ++q) {
        double expected = 0.0, with_y = 0.0;
        for (int64_t t = s == 0 ? 0 : 33; t < (s == 0 ? 33 : 40); ++t) {
          for (int64_t d = 0; d < 16; ++d) {
            const double left = static_cast<double>(c[static_cast<size_t>((t * 4 + r) * 16 + d)]);
            expected += left * static_cast<double>(c[static_cast<size_t>((t * 4 + q) * 16 + d)]);
            with_y += left * static_cast<double>(y[static_cast<size_t>(t * 16 + d)]);
          }
        }
        EXPECT_NEAR(gram[(s * 4 + r) * 4 + q], expected, 1e-5 * std::fabs(expected) + 1e-5);
        EXPECT_NEAR(b[s * 4 + r], with_y, 1e-5 * std::fabs(with_y) + 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace headwise
