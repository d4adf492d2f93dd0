// SPDX-License-Identifier: Apache-2.0
#include "core/layer/spec.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The refusal of `spec`, or OK.
absl::Status Refusal(const LayerSpec& spec) { return ResolveSpec(spec).status(); }

void ExpectInvalid(const LayerSpec& spec, const std::string& message) {
  EXPECT_EQ(Refusal(spec).code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_EQ(Refusal(spec).message(), message);
}

TEST(Spec, FillsTheDefaultsIn) {
  const LayerSpec spec = *ResolveSpec(BasicSpec(12, 3));
  EXPECT_EQ(spec.d_memory, 12);
  EXPECT_EQ(spec.d_out, 12);
  EXPECT_EQ(spec.kv_heads, 3);
  EXPECT_THAT(spec.dk, ElementsAre(4, 4, 4));
  EXPECT_THAT(spec.dv, ElementsAre(4, 4, 4));
  EXPECT_THAT(spec.query_to_kv, ElementsAre(0, 1, 2));
  EXPECT_THAT(spec.head_ids, ElementsAre(0, 1, 2));
  EXPECT_EQ(spec.head_scale(2), 0.5);
  EXPECT_TRUE(spec.equal_widths());
}

TEST(Spec, ResolvingTwiceChangesNothing) {
  LayerSpec spec = BasicSpec(8, 4);
  spec.kv_heads = 2;
  spec.rope = RopeSpec{};
  spec.rope->layout = RopeLayout::kHalf;
  const LayerSpec once = *ResolveSpec(spec);
  const LayerSpec twice = *ResolveSpec(once);
  EXPECT_EQ(once.dk, twice.dk);
  EXPECT_EQ(once.dv, twice.dv);
  EXPECT_EQ(once.query_to_kv, twice.query_to_kv);
  EXPECT_EQ(once.rope->dims, twice.rope->dims);
}

// The seeds' shapes: B 2, T 10, d_model 512, 8 heads.
TEST(Spec, ChapterWidths) {
  const LayerSpec spec = *ResolveSpec(BasicSpec(512, 8));
  EXPECT_EQ(spec.dk.front(), 64);
  EXPECT_EQ(spec.head_scale(0), 1.0 / 8.0);
  EXPECT_EQ(spec.q_width(), 512);
  ExpectInvalid(BasicSpec(512, 7),
                "width: model width must divide evenly across heads; was 512 for 7");
  LayerSpec given = BasicSpec(512, 7);
  given.dk = {64};
  EXPECT_EQ(ResolveSpec(given)->q_width(), 448);
}

TEST(Spec, HeadsMayDifferInWidth) {
  LayerSpec spec = BasicSpec(8, 3);
  spec.kv_heads = 2;
  spec.query_to_kv = {0, 1, 0};
  spec.dk = {3, 5, 3};
  spec.dv = {2, 1, 2};
  const LayerSpec resolved = *ResolveSpec(spec);
  EXPECT_EQ(resolved.q_width(), 11);
  EXPECT_EQ(resolved.k_width(), 8);
  EXPECT_EQ(resolved.v_width(), 3);
  EXPECT_EQ(resolved.z_width(), 5);
  EXPECT_EQ(resolved.kv_dk(1), 5);
  EXPECT_EQ(resolved.kv_dv(0), 2);
  EXPECT_FALSE(resolved.equal_widths());
  EXPECT_DOUBLE_EQ(resolved.head_scale(1), 1.0 / std::sqrt(5.0));
  spec.scale = 0.25;
  EXPECT_EQ(ResolveSpec(spec)->head_scale(1), 0.25);
}

TEST(Spec, QueryHeadsShareConsecutively) {
  LayerSpec spec = BasicSpec(12, 6);
  spec.kv_heads = 3;
  EXPECT_THAT(ResolveSpec(spec)->query_to_kv, ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(Spec, RefusesHeadsThatGroupsDoNotDivide) {
  LayerSpec spec = BasicSpec(12, 6);
  spec.kv_heads = 4;
  ExpectInvalid(spec, "kv_heads: must divide heads (6) without query_to_kv; was 4");
  spec.query_to_kv = {0, 0, 1, 2, 3, 3};
  EXPECT_TRUE(Refusal(spec).ok());
}

TEST(Spec, RefusesBadSizes) {
  ExpectInvalid(BasicSpec(0, 1), "d_model: must be from 1 to 1048576; was 0");
  ExpectInvalid(BasicSpec((1 << 20) + 1, 1), "d_model: must be from 1 to 1048576; was 1048577");
  ExpectInvalid(BasicSpec(8, 0), "heads: must be from 1 to 4096; was 0");
  ExpectInvalid(BasicSpec(8, std::numeric_limits<int64_t>::max()),
                "heads: must be from 1 to 4096; was 9223372036854775807");
  LayerSpec spec = BasicSpec(8, 2);
  spec.kv_heads = -2;
  ExpectInvalid(spec, "kv_heads: must be from 1 to 4096; was -2");
  spec = BasicSpec(8, 2);
  spec.d_out = -1;
  ExpectInvalid(spec, "d_out: must be from 1 to 1048576; was -1");
  spec = BasicSpec(8, 2);
  spec.dv = {0};
  ExpectInvalid(spec, "dv: must be from 1 to 65536; was 0");
  spec.dv = {1, 2, 3};
  ExpectInvalid(spec, "dv: must have 1 or 2 entries (heads); was 3");
}

TEST(Spec, RefusesBadMapsAndIds) {
  LayerSpec spec = BasicSpec(8, 2);
  spec.query_to_kv = {0, 2};
  ExpectInvalid(spec, "query_to_kv: must be from 0 to 1; was 2");
  spec.query_to_kv = {0};
  ExpectInvalid(spec, "query_to_kv: must have 2 entries (heads); was 1");
  spec = BasicSpec(8, 2);
  spec.head_ids = {5, 5};
  ExpectInvalid(spec, "head_ids: must be distinct; was 5 twice");
  spec.head_ids = {5};
  ExpectInvalid(spec, "head_ids: must have 2 entries (heads); was 1");
  spec.head_ids = {-1, 0};
  ExpectInvalid(spec, "head_ids: must be from 0 to 2147483647; was -1");
}

TEST(Spec, RefusesUnequalWidthsWithinAGroup) {
  LayerSpec spec = BasicSpec(8, 2);
  spec.kv_heads = 1;
  spec.dk = {2, 3};
  spec.dv = {2};
  ExpectInvalid(spec, "dk: heads that share a key/value head must have equal widths; was 2 and 3");
  spec.dk = {2};
  spec.dv = {4, 1};
  ExpectInvalid(spec, "dv: heads that share a key/value head must have equal widths; was 4 and 1");
}

// A key/value head that nobody reads is as wide as the others, if those agree.
TEST(Spec, UnreadKeyValueHead) {
  LayerSpec spec = BasicSpec(8, 2);
  spec.query_to_kv = {1, 1};
  spec.dk = {3};
  EXPECT_EQ(ResolveSpec(spec)->k_width(), 6);
  spec.kv_heads = 3;
  spec.query_to_kv = {0, 2};
  spec.dk = {3, 4};
  ExpectInvalid(spec,
                "query_to_kv: every key/value head must be read by a query head where widths "
                "differ; was none for 1");
}

TEST(Spec, RefusesUndeclaredOrientation) {
  LayerSpec spec = BasicSpec(8, 2);
  spec.orientation = Orientation::kUnspecified;
  ExpectInvalid(spec, "orientation: must be OUT_IN or IN_OUT; was unspecified");
}

TEST(Spec, FusedLayoutsNeedTheirShape) {
  LayerSpec spec = BasicSpec(8, 4);
  spec.kv_heads = 2;
  spec.fused_layout = FusedLayout::kPerHead;
  ExpectInvalid(spec, "fused_layout: PER_HEAD needs as many key/value heads as heads (4); was 2");
  spec.fused_layout = FusedLayout::kPerGroup;
  EXPECT_TRUE(Refusal(spec).ok());
  spec.query_to_kv = {0, 1, 0, 1};
  ExpectInvalid(
      spec, "query_to_kv: must not decrease with the fused layout PER_GROUP; was another order");
  spec.fused_layout = FusedLayout::kBlocks;
  EXPECT_TRUE(Refusal(spec).ok());
  spec.d_memory = 6;
  ExpectInvalid(spec,
                "fused_layout: must be SEPARATE where d_memory differs from d_model (8); was 6");
}

TEST(Spec, Windows) {
  LayerSpec spec = BasicSpec(8, 2);
  spec.mask.window = 0;
  EXPECT_TRUE(Refusal(spec).ok());
  spec.mask.window = -1;
  ExpectInvalid(spec, "mask.window: must be from 0 to 4294967295; was -1");
  spec.mask = {true, 0};
  ExpectInvalid(spec, "mask.window: must be at least 1 where causal (the own token counts); was 0");
  spec.mask = {true, 1};
  EXPECT_TRUE(Refusal(spec).ok());
}

TEST(Spec, ScaleMustBeFinite) {
  LayerSpec spec = BasicSpec(8, 2);
  spec.scale = std::numeric_limits<double>::infinity();
  ExpectInvalid(spec, "scale: must be finite; was inf");
  spec.scale = -2.0;
  EXPECT_EQ(ResolveSpec(spec)->head_scale(1), -2.0);
}

TEST(Spec, RopeRules) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.rope = RopeSpec{};
  ExpectInvalid(spec, "rope.layout: must be HALF or INTERLEAVED; was unspecified");
  spec.rope->layout = RopeLayout::kInterleaved;
  EXPECT_EQ(ResolveSpec(spec)->rope->dims, 6);
  spec.rope->dims = 4;
  EXPECT_TRUE(Refusal(spec).ok());
  spec.rope->dims = 3;
  ExpectInvalid(spec, "rope.dims: must be even, at least 2 and at most dk (6); was 3");
  spec.rope->dims = 8;
  ExpectInvalid(spec, "rope.dims: must be even, at least 2 and at most dk (6); was 8");
  spec.rope->dims = 0;
  spec.dk = {4, 6};
  ExpectInvalid(spec, "rope.dims: must be given where heads differ in dk; was 0");
  spec.rope->dims = 4;
  spec.rope->base = 0.0;
  ExpectInvalid(spec, "rope.base: must be finite and positive; was 0");
}

TEST(Spec, RefusesRopeSettingsThatWouldDoNothing) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.rope = RopeSpec{};
  spec.rope->layout = RopeLayout::kHalf;
  spec.rope->factor = 4.0;
  ExpectInvalid(spec, "rope.factor: needs a scaling other than DEFAULT; was 4");
  spec.rope->factor = 1.0;
  spec.rope->attention_factor = 1.5;
  ExpectInvalid(spec, "rope.attention_factor: needs the scaling YARN or LONGROPE; was 1.5");
  spec.rope->attention_factor = 1.0;
  EXPECT_TRUE(Refusal(spec).ok());
  spec.rope->short_factors = {1.0, 1.0, 1.0};
  ExpectInvalid(spec,
                "rope.short_factors, rope.long_factors: need the scaling LONGROPE; was another");
}

LayerSpec Scaled(RopeScaling scaling) {
  LayerSpec spec = BasicSpec(12, 2);
  RopeSpec& rope = spec.rope.emplace();
  rope.layout = RopeLayout::kHalf;
  rope.scaling = scaling;
  rope.factor = 2.0;
  rope.original_max_positions = 32.0;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  if (scaling == RopeScaling::kLongRope) {
    rope.short_factors = {1.0, 1.5, 2.0};
    rope.long_factors = {2.0, 2.5, 3.0};
  }
  return spec;
}

TEST(Spec, RopeScalings) {
  for (const RopeScaling scaling :
       {RopeScaling::kLinear, RopeScaling::kDynamic, RopeScaling::kLlama3, RopeScaling::kYarn,
        RopeScaling::kLongRope}) {
    LayerSpec spec = Scaled(scaling);
    EXPECT_TRUE(Refusal(spec).ok()) << Refusal(spec);
    spec.rope->factor = -2.0;
    ExpectInvalid(spec, "rope.factor: must be finite and positive; was -2");
    spec = Scaled(scaling);
    spec.rope->original_max_positions = 0.0;
    if (scaling == RopeScaling::kLinear) continue;
    ExpectInvalid(spec, "rope.original_max_positions: must be at least 1 with this scaling; was 0");
  }
}

TEST(Spec, RopeScalingsOwnSettings) {
  LayerSpec spec = Scaled(RopeScaling::kDynamic);
  spec.rope->dims = 2;
  ExpectInvalid(spec, "rope.dims: must be at least 4 with the scaling DYNAMIC; was 2");
  spec = Scaled(RopeScaling::kLlama3);
  spec.rope->high_freq_factor = 1.0;
  ExpectInvalid(spec, "rope.high_freq_factor: must be above low_freq_factor (1); was 1");
  spec.rope->low_freq_factor = 0.0;
  ExpectInvalid(spec, "rope.low_freq_factor: must be finite and positive; was 0");
  spec = Scaled(RopeScaling::kYarn);
  spec.rope->beta_fast = 0.0;
  ExpectInvalid(spec, "rope.beta_fast: must be finite and positive; was 0");
  spec = Scaled(RopeScaling::kYarn);
  spec.rope->attention_factor = 0.0;
  ExpectInvalid(spec, "rope.attention_factor: must be finite and positive; was 0");
  spec = Scaled(RopeScaling::kLongRope);
  spec.rope->long_factors.pop_back();
  ExpectInvalid(spec, "rope.long_factors: must have 3 entries (dims / 2); was 2");
  spec.rope->long_factors.push_back(0.0);
  ExpectInvalid(spec, "rope.long_factors: must be finite and positive; was 0");
}

TEST(Spec, ScoreSettings) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.softcap = 30.0;
  spec.clip = 8.0;
  spec.sinks = true;
  EXPECT_TRUE(Refusal(spec).ok());
  spec.softcap = 0.0;
  ExpectInvalid(spec, "softcap: must be finite and positive; was 0");
  spec.softcap.reset();
  spec.clip = -1.0;
  ExpectInvalid(spec, "clip: must be finite and positive; was -1");
}

TEST(Spec, QkNorms) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.qk_norm = QkNormSpec{};
  EXPECT_TRUE(Refusal(spec).ok());
  spec.qk_norm->epsilon = -1e-6;
  ExpectInvalid(spec, "qk_norm.epsilon: must be finite and not negative; was -1e-06");
  spec.qk_norm->epsilon = 0.0;
  spec.dk = {4, 8};
  ExpectInvalid(spec, "qk_norm.span: must be HEADS or WIDTH where heads differ in dk; was HEAD");
  spec.qk_norm->span = QkNormSpan::kHeads;
  EXPECT_TRUE(Refusal(spec).ok());
}

// The kernels know no mean over all heads.
TEST(Spec, ALayerNormOverTheWholeWidthIsNotCarriedOut) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.qk_norm = QkNormSpec{.kind = NormKind::kLayerNorm, .span = QkNormSpan::kWidth};
  EXPECT_EQ(Refusal(spec),
            absl::UnimplementedError(
                "qk_norm.kind: must be RMS or RMS_PLUS_ONE with the span WIDTH; was LAYER_NORM"));
  spec.qk_norm->kind = NormKind::kRmsPlusOne;
  EXPECT_TRUE(Refusal(spec).ok());
}

TEST(Spec, RowsOfAStatistic) {
  LayerSpec spec = BasicSpec(12, 2);
  EXPECT_EQ(spec.q_statistic_rows(), 0);
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kHeads, .q_statistic_rows = 6};
  ExpectInvalid(spec, "qk_norm.q_statistic_rows: needs the span WIDTH; was 6");
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kHeads, .k_statistic_rows = 7};
  ExpectInvalid(spec, "qk_norm.k_statistic_rows: needs the span WIDTH; was 7");
  spec.qk_norm->span = QkNormSpan::kWidth;
  EXPECT_TRUE(Refusal(spec).ok());
  EXPECT_EQ(spec.k_statistic_rows(), 7);
  spec.qk_norm->k_statistic_rows = -1;
  ExpectInvalid(spec, "qk_norm.k_statistic_rows: must be from 0 to 268435456; was -1");
  spec.qk_norm->k_statistic_rows = 268435457;
  ExpectInvalid(spec, "qk_norm.k_statistic_rows: must be from 0 to 268435456; was 268435457");
}

TEST(Spec, PreNorm) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.pre_norm = PreNormSpec{NormKind::kLayerNorm, 0.0};
  EXPECT_TRUE(Refusal(spec).ok());
  spec.pre_norm->epsilon = -1.0;
  ExpectInvalid(spec, "pre_norm.epsilon: must be finite and not negative; was -1");
}

TEST(Spec, AlibiHasASlopeForEachHead) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.position_bias = PositionBiasSpec{};
  ExpectInvalid(spec, "position_bias.slopes: must have 2 entries (heads); was 0");
  spec.position_bias->slopes = {0.5f, 0.25f};
  spec.position_bias->rounded_to_bf16 = true;
  EXPECT_TRUE(Refusal(spec).ok());
  spec.position_bias->buckets = 32;
  ExpectInvalid(spec,
                "position_bias.buckets, max_distance, bidirectional: need the kind T5_BUCKETS; "
                "was ALIBI");
}

TEST(Spec, Buckets) {
  LayerSpec spec = BasicSpec(12, 2);
  PositionBiasSpec& bias = spec.position_bias.emplace();
  bias.kind = PositionBiasKind::kT5Buckets;
  bias.buckets = 32;
  bias.max_distance = 128;
  EXPECT_TRUE(Refusal(spec).ok());
  bias.max_distance = 16;
  ExpectInvalid(spec, "position_bias.max_distance: must be from 17 to 1099511627776; was 16");
  bias.bidirectional = true;  // 16 a side, 8 of them exact
  EXPECT_TRUE(Refusal(spec).ok());
  bias.buckets = 3;
  ExpectInvalid(spec, "position_bias.buckets: must be from 4 to 1048576; was 3");
  bias.scaled = true;
  ExpectInvalid(spec,
                "position_bias.slopes, scaled, rounded_to_bf16: need the kind ALIBI; was "
                "T5_BUCKETS");
}

TEST(Spec, Gates) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.gates = {1.0f, 0.5f};
  EXPECT_TRUE(Refusal(spec).ok());
  spec.gates = {1.0f};
  ExpectInvalid(spec, "gates: must have 2 entries (heads); was 1");
  spec.gates = {1.0f, std::numeric_limits<float>::infinity()};
  ExpectInvalid(spec, "gates: must be finite; was inf");
}

}  // namespace
}  // namespace headwise
