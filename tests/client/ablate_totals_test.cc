// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_totals.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise::client {
namespace {

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

// A file that an intervention leaves alone answers with one draw, others with as many as asked.
TEST(AblateTotals, OneDrawStandsForAll) {
  v1::AblateResult drawn = Answer(0, 2);
  v1::AblationEffect* effect = drawn.mutable_ablations(0);
  for (int i = 0; i < 6; ++i) effect->add_sums(effect->sums(i) * (i % 3 == 2 ? 4.0 : 1.0));
  for (const bool first : {true, false}) {
    const v1::AblateResult total =
        Total(first ? std::vector{drawn, Answer(2, 1)} : std::vector{Answer(2, 1), drawn});
    // Mean over the draws of sqrt(sum ‖y - y'‖²): 1.0 + 1.6 (four times that), and 2.2 of the
    // other.
    const double one = std::sqrt(1.0 + 1.6 + 2.2), other = std::sqrt(4.0 * 2.6 + 2.2);
    EXPECT_NEAR(total.ablations(0).effect().l2(), 0.5 * (one + other), 1e-12) << first;
  }
}

v1::NamedTensor Tensor(const std::string& name, v1::DType dtype, std::vector<uint32_t> shape,
                       const std::string& data) {
  v1::NamedTensor tensor;
  tensor.set_name(name);
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  for (size_t i = 0; i < shape.size(); ++i) tensor.add_axes(i == 0 ? "sequence" : "head");
  tensor.set_data(data);
  return tensor;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(AblateTotals, GramsAndMeansAddUp) {
  const auto answer = [](int first, std::vector<double> b, std::vector<int64_t> counts,
                         std::vector<double> means) {
    v1::AblateResult result = Answer(first, 2);
    *result.add_tensors() = Tensor("b", v1::F64, {2, 2}, Bytes(b));
    *result.add_tensors() = Tensor("z_mean", v1::F64, {2, 3}, Bytes(means));
    result.mutable_tensors(1)->add_offsets(0);
    result.mutable_tensors(1)->add_offsets(2);  // a head of two features and one of one
    *result.add_tensors() = Tensor("z_tokens", v1::I64, {2, 2}, Bytes(counts));
    return result;
  };
  const double nan = std::nan("");
  const v1::AblateResult total =
      Total({answer(0, {1, 2, 3, 4}, {1, 3, 0, 1}, {1, 2, 3, nan, nan, 5}),
             answer(2, {10, 20, 30, 40}, {1, 1, 2, 0}, {3, 4, 1, 5, 6, nan})});
  ASSERT_EQ(total.tensors_size(), 3);
  EXPECT_EQ(total.tensors(0).data(), Bytes(std::vector<double>{44, 66}));
  EXPECT_EQ(total.tensors(0).shape_size(), 1);
  // Head 0: (1 * 1 + 1 * 3 + 2 * 5) / 4; head 1: (3 * 3 + 1 * 5 + 1 * 1) / 5.
  EXPECT_EQ(total.tensors(1).data(), Bytes(std::vector<double>{3.5, 4.5, 3.0}));
  EXPECT_EQ(total.tensors(2).data(), Bytes(std::vector<int64_t>{4, 5}));
}

}  // namespace
}  // namespace headwise::client
