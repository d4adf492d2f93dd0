// SPDX-License-Identifier: Apache-2.0
#include "core/format/counts.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

std::map<std::string, int64_t> Values(const CountShape& shape, const CountWorkload& work) {
  std::map<std::string, int64_t> values;
  const absl::StatusOr<std::vector<Count>> counts = CountLayer(shape, work);
  EXPECT_TRUE(counts.ok()) << counts.status();
  if (!counts.ok()) return values;
  for (const Count& count : *counts) {
    EXPECT_FALSE(count.unit.empty());
    EXPECT_FALSE(count.convention.empty());
    EXPECT_TRUE(values.emplace(count.id, count.value).second) << count.id << " twice";
  }
  return values;
}

// The chapter's example: B 2, T 10, D 512, 8 heads.
TEST(Counts, ChapterExample) {
  const absl::StatusOr<CountShape> shape = MakeCountShape(512, 8, 0, 0, 0);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->dk, std::vector<int64_t>(8, 64));
  std::map<std::string, int64_t> values = Values(*shape, {2, 10, 10});
  EXPECT_EQ(values["score_elements"], 1600);
  EXPECT_EQ(values["score_elements_causal"], 880);
  EXPECT_EQ(values["parameters"], 1048576);
  EXPECT_EQ(values["parameters_with_bias"], 1050624);
  EXPECT_EQ(values["macs_dense"], 21176320);
  EXPECT_EQ(values["macs_causal"], 20971520 + 2 * 8 * 55 * 128);
  EXPECT_EQ(values["flops_dense"], 2 * 21176320);
  EXPECT_EQ(values["flops_causal"], 2 * values["macs_causal"]);
  EXPECT_EQ(values["weight_bytes"], 4 * 1050624);
  EXPECT_EQ(values["kv_bytes_per_token"], 2 * 512 * 4);
  EXPECT_EQ(values["score_tensor_bytes"], 6400);
  EXPECT_EQ(values.count("kernel_score_bytes"), 0u);
}

TEST(Counts, KernelScoreBytesWhereGiven) {
  const std::vector<Count> counts = *CountLayer(*MakeCountShape(8, 2, 0, 0, 0), {1, 4, 4}, 77);
  EXPECT_EQ(counts.back().id, "kernel_score_bytes");
  EXPECT_EQ(counts.back().value, 77);
}

TEST(Counts, OrderAndConventionsAreFixed) {
  const std::vector<Count> counts = *CountLayer(*MakeCountShape(512, 8, 0, 0, 0), {2, 10, 10});
  std::vector<std::string> ids;
  for (const Count& count : counts) ids.push_back(count.id);
  EXPECT_THAT(
      ids,
      ::testing::ElementsAre(
          "score_elements", "score_elements_causal", "parameters", "parameters_with_bias",
          "parameters_q", "parameters_q_with_bias", "parameters_k", "parameters_k_with_bias",
          "parameters_v", "parameters_v_with_bias", "parameters_o", "parameters_o_with_bias",
          "macs_dense", "macs_causal", "flops_dense", "flops_causal", "macs_q", "flops_q", "macs_k",
          "flops_k", "macs_v", "flops_v", "macs_o", "flops_o", "macs_scores_dense",
          "flops_scores_dense", "macs_scores_causal", "flops_scores_causal", "macs_values_dense",
          "flops_values_dense", "macs_values_causal", "flops_values_causal", "weight_bytes",
          "activation_bytes", "kv_bytes_per_token", "score_tensor_bytes"));
  EXPECT_EQ(counts[0].convention, "B*H*T*S, dense");
  EXPECT_EQ(counts[1].convention, "B*H*T(T+1)/2");
  EXPECT_EQ(counts[2].convention, "without bias");
  EXPECT_EQ(counts[3].convention, "b_q, b_k, b_v, b_o");
  EXPECT_EQ(counts[4].convention, "W_q: D * H*dk");
  EXPECT_EQ(counts[12].convention, "projections + scores + values");
}

// D 512, H 8: four matrices of 512 x 512, each applied to 2 * 10 tokens.
TEST(Counts, PartsOfTheChapterExample) {
  std::map<std::string, int64_t> values = Values(*MakeCountShape(512, 8, 0, 0, 0), {2, 10, 10});
  for (const char* matrix : {"q", "k", "v", "o"}) {
    EXPECT_EQ(values[absl::StrCat("parameters_", matrix)], 262144);
    EXPECT_EQ(values[absl::StrCat("parameters_", matrix, "_with_bias")], 262144 + 512);
    EXPECT_EQ(values[absl::StrCat("macs_", matrix)], 20 * 262144);
    EXPECT_EQ(values[absl::StrCat("flops_", matrix)], 2 * 20 * 262144);
  }
  EXPECT_EQ(values["macs_scores_dense"], 2 * 10 * 10 * 512);
  EXPECT_EQ(values["macs_scores_causal"], 2 * 55 * 512);
  EXPECT_EQ(values["activation_bytes"], 6 * 20 * 512 * 4);
}

// Parts add up to their totals, whatever the widths.
TEST(Counts, PartsAddUp) {
  CountShape shape;
  shape.d_model = 5, shape.d_memory = 3, shape.d_out = 4;
  shape.dk = {2, 3, 3}, shape.dv = {1, 4, 4};
  shape.kv_dk = {2, 3}, shape.kv_dv = {1, 4};
  shape.k_bias = false;
  std::map<std::string, int64_t> values = Values(shape, {3, 2, 7});
  const auto sum = [&](const std::vector<std::string>& ids) {
    int64_t total = 0;
    for (const std::string& id : ids) {
      EXPECT_GT(values.count(id), 0u) << id;
      total += values[id];
    }
    return total;
  };
  EXPECT_EQ(values["parameters"],
            sum({"parameters_q", "parameters_k", "parameters_v", "parameters_o"}));
  EXPECT_EQ(values["parameters_with_bias"],
            sum({"parameters_q_with_bias", "parameters_k_with_bias", "parameters_v_with_bias",
                 "parameters_o_with_bias"}));
  EXPECT_EQ(values["parameters_k_with_bias"], values["parameters_k"]);
  for (const std::string unit : {"macs", "flops"}) {
    for (const std::string pairs : {"dense", "causal"}) {
      EXPECT_EQ(values[unit + "_" + pairs],
                sum({unit + "_q", unit + "_k", unit + "_v", unit + "_o", unit + "_scores_" + pairs,
                     unit + "_values_" + pairs}));
    }
  }
  EXPECT_EQ(values["activation_bytes"], 4 * 3 * (2 * (5 + 8 + 9 + 4) + 7 * (5 + 5)));
}

// Rows of pruned heads are counted by themselves and in every total, which says so.
TEST(Counts, RowsInANormsStatistic) {
  CountShape shape = *MakeCountShape(8, 2, 0, 0, 0);
  shape.d_memory = 5;
  const CountWorkload work = {2, 3, 7};
  std::map<std::string, int64_t> plain = Values(shape, work);
  shape.q_statistic_rows = 4, shape.k_statistic_rows = 3;
  shape.q_statistic_bias = true;
  std::map<std::string, int64_t> values = Values(shape, work);
  EXPECT_EQ(values["parameters_q_statistic"], 4 * 8);
  EXPECT_EQ(values["parameters_q_statistic_with_bias"], 4 * 8 + 4);
  EXPECT_EQ(values["parameters_k_statistic_with_bias"], 3 * 5);
  EXPECT_EQ(values["macs_q_statistic"], 2 * 3 * 4 * 8);
  EXPECT_EQ(values["flops_k_statistic"], 2 * 2 * 7 * 3 * 5);
  EXPECT_EQ(values["parameters"], plain["parameters"] + 32 + 15);
  EXPECT_EQ(values["weight_bytes"], plain["weight_bytes"] + 4 * (36 + 15));
  for (const char* total : {"macs_dense", "macs_causal"}) {
    EXPECT_EQ(values[total], plain[total] + 192 + 210);
  }
  EXPECT_EQ(values["activation_bytes"], plain["activation_bytes"]);
  const std::vector<Count> counts = *CountLayer(shape, work);
  const auto convention = [&](const std::string& id) {
    return std::find_if(counts.begin(), counts.end(),
                        [&](const Count& count) { return count.id == id; })
        ->convention;
  };
  const std::string too = "; rows of pruned heads in the norm's statistic too";
  EXPECT_EQ(convention("parameters"), "without bias" + too);
  EXPECT_EQ(convention("parameters_with_bias"), "b_q, b_k, b_v, b_o, b_q_statistic" + too);
  EXPECT_EQ(convention("parameters_q_statistic"),
            "W_q_statistic: D * rows of pruned heads in the norm's statistic");
  EXPECT_EQ(convention("macs_k_statistic"),
            "B*S * d_memory * rows of pruned heads in the norm's statistic");
  EXPECT_EQ(convention("macs_dense"), "projections + the norm's statistic + scores + values");
  shape.k_statistic_rows = -1;
  EXPECT_EQ(CountLayer(shape, work).status().message(), "size: must not be negative; was -1");
}

TEST(Counts, GroupedHeadsAndMissingBiases) {
  absl::StatusOr<CountShape> shape = MakeCountShape(576, 9, 3, 0, 0);
  ASSERT_TRUE(shape.ok());
  shape->q_bias = shape->k_bias = shape->v_bias = shape->o_bias = false;
  std::map<std::string, int64_t> values = Values(*shape, {1, 1, 1});
  EXPECT_EQ(values["parameters"], 576 * 576 * 2 + 2 * 192 * 576);
  EXPECT_EQ(values["parameters_with_bias"], values["parameters"]);
  shape->v_bias = true;
  EXPECT_EQ(Values(*shape, {1, 1, 1})["parameters_with_bias"], values["parameters"] + 192);
}

TEST(Counts, UnequalHeadsAndWidths) {
  CountShape shape;
  shape.d_model = 5, shape.d_memory = 3, shape.d_out = 4;
  shape.dk = {2, 3}, shape.dv = {1, 4};
  shape.kv_dk = {2, 3}, shape.kv_dv = {1, 4};
  std::map<std::string, int64_t> values = Values(shape, {1, 2, 3});
  EXPECT_EQ(values["parameters"], 5 * 5 + 3 * 5 + 3 * 5 + 4 * 5);
  EXPECT_EQ(values["parameters_with_bias"], 75 + 5 + 5 + 5 + 4);
  EXPECT_EQ(values["macs_dense"], 2 * (25 + 20) + 3 * 30 + 2 * 3 * (5 + 5));
}

// Pairs that a causal mask leaves, counted one by one, the last query at the last key.
TEST(Counts, CausalPairsOfUnequalLengths) {
  const CountShape shape = *MakeCountShape(1, 1, 0, 0, 0);
  for (int64_t queries = 0; queries < 9; ++queries) {
    for (int64_t keys = 0; keys < 9; ++keys) {
      int64_t pairs = 0;
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t j = 0; j < keys; ++j) pairs += j - (keys - 1) <= i - (queries - 1);
      }
      EXPECT_EQ(Values(shape, {1, queries, keys})["score_elements_causal"], pairs)
          << queries << " " << keys;
    }
  }
}

TEST(Counts, RefusalsNameTheRule) {
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message(MakeCountShape(512, 7, 0, 0, 0)),
            "width: model width must divide evenly across heads; was 512 for 7");
  EXPECT_TRUE(MakeCountShape(512, 7, 0, 64, 0).ok());
  EXPECT_EQ(message(MakeCountShape(512, 8, 3, 0, 0)),
            "kv_heads: must divide 8 heads evenly; was 3");
  EXPECT_EQ(message(MakeCountShape(0, 8, 0, 0, 0)), "width: must be positive; was 0");
  EXPECT_EQ(message(MakeCountShape(8, 0, 0, 0, 0)), "heads: must be 1 to 65536; was 0");
  EXPECT_EQ(message(MakeCountShape(8, 2, 0, -4, 0)), "dk: must be positive; was -4");
  EXPECT_EQ(message(MakeCountShape(8, 2, 0, 0, -4)), "dv: must be positive; was -4");
  EXPECT_EQ(message(CountLayer(*MakeCountShape(8, 2, 0, 0, 0), {1, -2, 3})),
            "size: must not be negative; was -2");
}

TEST(Counts, FiguresBeyond63BitsAreRefused) {
  const CountShape shape = *MakeCountShape(int64_t{1} << 40, 1, 0, 0, 0);
  const absl::Status status = CountLayer(shape, {1, 1, 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("parameters: must be at most 2^63 - 1"));
  const CountShape small = *MakeCountShape(8, 2, 0, 0, 0);
  EXPECT_FALSE(CountLayer(small, {1, int64_t{1} << 62, int64_t{1} << 62}).ok());
  EXPECT_FALSE(CountLayer(small, {int64_t{1} << 62, 4, 4}).ok());
}

}  // namespace
}  // namespace headwise
