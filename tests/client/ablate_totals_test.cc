// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_totals.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise::client {
namespace {

using ::testing::HasSubstr;

// An answer of one ablation and one pair over sequences first … first + count - 1.
v1::AblateResult Answer(int first, int count) {
  v1::AblateResult result;
  result.set_layer("layer");
  result.set_layer_version(3);
  result.set_forwards(1);
  result.set_from_gram(true);
  result.mutable_scope()->set_text("x sequences, y tokens; rest");
  result.mutable_scope()->set_n_sequences(static_cast<uint32_t>(count));
  v1::AblationEffect* effect = result.add_ablations();
  v1::Interaction* pair = result.add_interactions();
  double pair_sums[5] = {};
  for (int s = first; s < first + count; ++s) {
    result.add_lengths(static_cast<uint32_t>(s + 1));
    result.mutable_scope()->set_n_tokens(result.scope().n_tokens() + static_cast<uint32_t>(s + 1));
    const double y_sq = 4.0 + s, y_delta = 0.5 + 0.1 * s, delta_sq = 1.0 + 0.3 * ((s * 7) % 5);
    for (const double sum : {y_sq, y_delta, delta_sq}) effect->add_sums(sum);
    effect->add_per_sequence()->set_l2(std::sqrt(delta_sq));
    result.add_y_l2_per_sequence(std::sqrt(y_sq));
    const double sums[5] = {0.1 * s, 1.0 + s, 2.0, 3.0 + 1.2 * s, y_sq};
    for (int i = 0; i < 5; ++i) pair_sums[i] += sums[i];
  }
  for (const double sum : pair_sums) pair->add_sums(sum);
  return result;
}

v1::AblateResult Total(const std::vector<v1::AblateResult>& answers) {
  AblateTotals totals({});
  for (const v1::AblateResult& answer : answers) {
    const absl::Status added = totals.Add(answer);
    EXPECT_TRUE(added.ok()) << added;
  }
  return totals.Take();
}

TEST(AblateTotals, PartsAreTheWhole) {
  const v1::AblateResult whole = Total({Answer(0, 12)});
  const v1::AblateResult parts = Total({Answer(0, 5), Answer(5, 1), Answer(6, 6)});
  EXPECT_EQ(parts.forwards(), 3u);
  EXPECT_EQ(parts.lengths_size(), 12);
  EXPECT_EQ(parts.scope().text(), "12 sequences, 78 tokens; rest");
  EXPECT_NEAR(parts.y_l2(), whole.y_l2(), 1e-12);
  const v1::AblationEffect &a = parts.ablations(0), &b = whole.ablations(0);
  EXPECT_EQ(a.per_sequence_size(), 12);
  EXPECT_EQ(a.sums_size(), 0);
  EXPECT_NEAR(a.effect().relative_l2(), b.effect().relative_l2(), 1e-12);
  EXPECT_NEAR(a.effect().cosine(), b.effect().cosine(), 1e-12);
  EXPECT_EQ(a.intervals().l2().method(), "BCA");
  EXPECT_EQ(a.intervals().l2().low(), b.intervals().l2().low());
  EXPECT_EQ(a.intervals().cosine().high(), b.intervals().cosine().high());
  EXPECT_NEAR(parts.interactions(0).interaction(), whole.interactions(0).interaction(), 1e-12);
  EXPECT_NEAR(parts.interactions(0).relative_l2(), whole.interactions(0).relative_l2(), 1e-12);
}

TEST(AblateTotals, AnswersMustFitEachOther) {
  AblateTotals totals({});
  ASSERT_TRUE(totals.Add(Answer(0, 2)).ok());
  v1::AblateResult other = Answer(2, 2);
  other.set_layer_version(4);
  EXPECT_EQ(totals.Add(other).code(), absl::StatusCode::kFailedPrecondition);
  other = Answer(2, 2);
  other.add_ablations();
  EXPECT_EQ(totals.Add(other).code(), absl::StatusCode::kInternal);
  other = Answer(2, 2);
  other.mutable_ablations(0)->add_sums(1.0);
  EXPECT_EQ(totals.Add(other).code(), absl::StatusCode::kInternal);
}

TEST(AblateTotals, WhatLooksAtAWholeInputIsRefused) {
  v1::AblateRequest request;
  request.set_sweep(v1::LEAVE_ONE_OUT);
  request.mutable_sweep_intervention()->set_kind(v1::Intervention::ZERO);
  EXPECT_TRUE(CheckAddsUp(request).ok());
  request.set_sweep(v1::PRUNE_PLAN);
  EXPECT_THAT(std::string(CheckAddsUp(request).message()), HasSubstr("PRUNE_PLAN"));
  request.set_sweep(v1::CUMULATIVE);
  EXPECT_FALSE(CheckAddsUp(request).ok());
  request.add_order(1);
  EXPECT_TRUE(CheckAddsUp(request).ok());
  request.mutable_sweep_intervention()->set_kind(v1::Intervention::MEAN);
  EXPECT_FALSE(CheckAddsUp(request).ok());
  request.mutable_sweep_intervention()->mutable_tensor();
  EXPECT_TRUE(CheckAddsUp(request).ok());
  request.clear_sweep_intervention();
  request.add_ablations()->add_interventions()->set_kind(v1::Intervention::KNOCKOUT);
  EXPECT_THAT(std::string(CheckAddsUp(request).message()), HasSubstr("KNOCKOUT"));
}

}  // namespace
}  // namespace headwise::client
