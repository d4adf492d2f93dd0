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

void ExpectUnsupported(const LayerSpec& spec, const std::string& field) {
  EXPECT_EQ(Refusal(spec).code(), absl::StatusCode::kUnimplemented) << field;
  EXPECT_THAT(std::string(Refusal(spec).message()), HasSubstr(field + ": not carried out"));
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
  ExpectUnsupported(spec, "rope.attention_factor");
}

TEST(Spec, NamesWhatIsNotCarriedOut) {
  const LayerSpec plain = BasicSpec(12, 2);
  LayerSpec spec = plain;
  spec.softcap = 30.0;
  ExpectUnsupported(spec, "softcap");
  spec = plain;
  spec.clip = 8.0;
  ExpectUnsupported(spec, "clip");
  spec = plain;
  spec.qk_norm = QkNormSpec{};
  ExpectUnsupported(spec, "qk_norm");
  spec = plain;
  spec.position_bias = PositionBiasSpec{};
  ExpectUnsupported(spec, "position_bias");
  spec = plain;
  spec.sinks = true;
  ExpectUnsupported(spec, "sinks");
  spec = plain;
  spec.gates = {1.0f, 0.5f};
  ExpectUnsupported(spec, "gates");
  spec = plain;
  spec.rope = RopeSpec{};
  spec.rope->layout = RopeLayout::kHalf;
  spec.rope->scaling = RopeScaling::kYarn;
  ExpectUnsupported(spec, "rope.scaling");
}

}  // namespace
}  // namespace headwise
