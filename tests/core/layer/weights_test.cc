// SPDX-License-Identifier: Apache-2.0
#include "core/layer/weights.h"

#include <deque>
#include <numeric>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// Tensors by role, in the order added.
class Tensors {
 public:
  Tensors& Add(TensorRole role, Shape shape, const std::vector<float>& values) {
    owned_.push_back(FloatTensor(std::move(shape), values));
    roles_.push_back({role, std::string("t.") + TensorRoleName(role), owned_.back().view()});
    return *this;
  }
  // One head's row of a role.
  Tensors& AddHead(TensorRole role, int64_t head, const std::vector<float>& values) {
    Add(role, {static_cast<int64_t>(values.size())}, values);
    roles_.back().head = head;
    return *this;
  }
  // Values 1, 2, 3, …
  Tensors& Count(TensorRole role, Shape shape) {
    std::vector<float> values(static_cast<size_t>(*NumElements(shape)));
    std::iota(values.begin(), values.end(), 1.0f);
    return Add(role, std::move(shape), values);
  }
  const std::vector<RoleTensor>& roles() const { return roles_; }

 private:
  std::deque<OwnedTensor> owned_;  // stays in place as it grows
  std::vector<RoleTensor> roles_;
};

LayerSpec Resolve(const LayerSpec& spec) { return *ResolveSpec(spec); }

void ExpectInvalid(const LayerSpec& spec, const Tensors& tensors, const std::string& message) {
  const absl::Status status = UnpackWeights(spec, tensors.roles()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), message);
}

Tensors SeparateTensors() {
  Tensors tensors;
  tensors.Count(TensorRole::kQWeight, {2, 2}).Count(TensorRole::kKWeight, {2, 2});
  tensors.Count(TensorRole::kVWeight, {2, 2}).Count(TensorRole::kOWeight, {2, 2});
  return tensors;
}

TEST(Weights, KeepsOutInAsItIs) {
  const LayerMatrices m = *UnpackWeights(Resolve(BasicSpec(2, 2)), SeparateTensors().roles());
  EXPECT_THAT(m.wq, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(m.wo, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(m.bq, IsEmpty());
  EXPECT_THAT(m.bo, IsEmpty());
}

TEST(Weights, TurnsInOutRound) {
  LayerSpec spec = BasicSpec(2, 2);
  spec.orientation = Orientation::kInOut;
  spec.d_out = 3;
  Tensors tensors;
  tensors.Count(TensorRole::kQWeight, {2, 2}).Count(TensorRole::kKWeight, {2, 2});
  tensors.Count(TensorRole::kVWeight, {2, 2}).Count(TensorRole::kOWeight, {2, 3});
  const LayerMatrices m = *UnpackWeights(Resolve(spec), tensors.roles());
  EXPECT_THAT(m.wq, ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(m.wo, ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(Weights, KeepsBiases) {
  Tensors tensors = SeparateTensors();
  tensors.Add(TensorRole::kVBias, {2}, {7, 8}).Add(TensorRole::kOBias, {2}, {5, 6});
  const LayerMatrices m = *UnpackWeights(Resolve(BasicSpec(2, 2)), tensors.roles());
  EXPECT_THAT(m.bq, IsEmpty());
  EXPECT_THAT(m.bv, ElementsAre(7, 8));
  EXPECT_THAT(m.bo, ElementsAre(5, 6));
}

TEST(Weights, WidensStoredTypes) {
  Tensors tensors = SeparateTensors();
  std::vector<RoleTensor> roles = tensors.roles();
  const uint16_t bf16[] = {0x3f80, 0xc000, 0x4040, 0x3f00};
  const uint16_t f16[] = {0x3c00, 0x0001, 0xc000, 0x7bff};
  roles[0].view = {DType::kBF16, {2, 2}, bf16};
  roles[1].view = {DType::kF16, {2, 2}, f16};
  const LayerMatrices m = *UnpackWeights(Resolve(BasicSpec(2, 2)), roles);
  EXPECT_THAT(m.wq, ElementsAre(1.0f, -2.0f, 3.0f, 0.5f));
  EXPECT_THAT(m.wk, ElementsAre(1.0f, 0x1p-24f, -2.0f, 65504.0f));
}

TEST(Weights, RefusesOtherTypes) {
  Tensors tensors = SeparateTensors();
  std::vector<RoleTensor> roles = tensors.roles();
  roles[0].view.dtype = DType::kI32;
  const absl::Status status = UnpackWeights(Resolve(BasicSpec(2, 2)), roles).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "t.Q_WEIGHT: dtype must be F32, BF16, F16 or F64; was I32");
}

TEST(Weights, NamesTheTensorWithBothShapes) {
  Tensors tensors;
  tensors.Count(TensorRole::kQWeight, {2, 2}).Count(TensorRole::kKWeight, {2, 3});
  tensors.Count(TensorRole::kVWeight, {2, 2}).Count(TensorRole::kOWeight, {2, 2});
  ExpectInvalid(Resolve(BasicSpec(2, 2)), tensors,
                "t.K_WEIGHT: K_WEIGHT must have shape [2, 2]; was [2, 3]");
  tensors = SeparateTensors();
  tensors.Count(TensorRole::kOBias, {1, 2});
  ExpectInvalid(Resolve(BasicSpec(2, 2)), tensors,
                "t.O_BIAS: O_BIAS must have shape [2]; was [1, 2]");
}

TEST(Weights, RefusesMissingDoubledAndMixedRoles) {
  const LayerSpec spec = Resolve(BasicSpec(2, 2));
  Tensors missing;
  missing.Count(TensorRole::kQWeight, {2, 2}).Count(TensorRole::kKWeight, {2, 2});
  missing.Count(TensorRole::kOWeight, {2, 2});
  ExpectInvalid(spec, missing, "tensors: V_WEIGHT must be given; was absent");

  Tensors doubled = SeparateTensors();
  doubled.Count(TensorRole::kQWeight, {2, 2});
  ExpectInvalid(spec, doubled,
                "tensors: Q_WEIGHT must be given once; was \"t.Q_WEIGHT\" and \"t.Q_WEIGHT\"");

  Tensors mixed = SeparateTensors();
  mixed.Count(TensorRole::kQkvWeight, {6, 2});
  ExpectInvalid(spec, mixed, "tensors: QKV_WEIGHT needs a fused layout; was \"t.QKV_WEIGHT\"");

  LayerSpec fused = spec;
  fused.fused_layout = FusedLayout::kBlocks;
  ExpectInvalid(fused, SeparateTensors(),
                "tensors: Q_WEIGHT does not belong to a fused layout; was \"t.Q_WEIGHT\"");
  Tensors biases;
  biases.Count(TensorRole::kQkvWeight, {6, 2}).Count(TensorRole::kOWeight, {2, 2});
  biases.Count(TensorRole::kQkvBias, {6}).Count(TensorRole::kVBias, {2});
  ExpectInvalid(fused, biases, "tensors: V_BIAS does not go with QKV_BIAS; was \"t.V_BIAS\"");
}

// Unpacks a fused weight whose row n is [n+1, 0, …] and returns the row numbers (from 1) of q, k,
// v.
std::vector<std::vector<float>> RowsOf(const LayerSpec& given) {
  const LayerSpec spec = Resolve(given);
  const int64_t rows = spec.q_width() + spec.k_width() + spec.v_width();
  Tensors tensors;
  tensors.Count(TensorRole::kQkvWeight, {rows, 1}).Count(TensorRole::kQkvBias, {rows});
  tensors.Count(TensorRole::kOWeight, {1, spec.z_width()});
  const LayerMatrices m = *UnpackWeights(spec, tensors.roles());
  EXPECT_THAT(m.bq, ElementsAreArray(m.wq));
  EXPECT_THAT(m.bk, ElementsAreArray(m.wk));
  EXPECT_THAT(m.bv, ElementsAreArray(m.wv));
  return {m.wq, m.wk, m.wv};
}

LayerSpec FusedSpec(int64_t heads, int64_t kv_heads, int64_t width, FusedLayout layout) {
  LayerSpec spec = BasicSpec(1, heads);
  spec.kv_heads = kv_heads;
  spec.dk = {width};
  spec.fused_layout = layout;
  return spec;
}

TEST(Weights, FusedBlocks) {
  EXPECT_THAT(RowsOf(FusedSpec(4, 2, 1, FusedLayout::kBlocks)),
              ElementsAre(ElementsAre(1, 2, 3, 4), ElementsAre(5, 6), ElementsAre(7, 8)));
}

TEST(Weights, FusedPerHead) {
  EXPECT_THAT(
      RowsOf(FusedSpec(2, 2, 2, FusedLayout::kPerHead)),
      ElementsAre(ElementsAre(1, 2, 7, 8), ElementsAre(3, 4, 9, 10), ElementsAre(5, 6, 11, 12)));
}

TEST(Weights, FusedPerGroup) {
  EXPECT_THAT(RowsOf(FusedSpec(4, 2, 1, FusedLayout::kPerGroup)),
              ElementsAre(ElementsAre(1, 2, 5, 6), ElementsAre(3, 7), ElementsAre(4, 8)));
}

TEST(Weights, FusedLayoutsFollowTheWidthsOfEachHead) {
  LayerSpec spec = FusedSpec(3, 2, 1, FusedLayout::kPerGroup);
  spec.query_to_kv = {0, 1, 1};
  spec.dk = {2, 1, 1};
  spec.dv = {1, 3, 3};
  EXPECT_THAT(RowsOf(spec), ElementsAre(ElementsAre(1, 2, 6, 7), ElementsAre(3, 4, 8),
                                        ElementsAre(5, 9, 10, 11)));
  spec = FusedSpec(2, 2, 1, FusedLayout::kPerHead);
  spec.dk = {1, 2};
  spec.dv = {2, 1};
  EXPECT_THAT(RowsOf(spec),
              ElementsAre(ElementsAre(1, 5, 6), ElementsAre(2, 7, 8), ElementsAre(3, 4, 9)));
}

// GPT-2's Conv1D: [in, out], so the blocks are columns.
TEST(Weights, FusedColumns) {
  LayerSpec spec = BasicSpec(2, 1);
  spec.orientation = Orientation::kInOut;
  spec.fused_layout = FusedLayout::kBlocks;
  spec.dk = {1};
  Tensors tensors;
  tensors.Count(TensorRole::kQkvWeight, {2, 3}).Count(TensorRole::kOWeight, {1, 2});
  const LayerMatrices m = *UnpackWeights(Resolve(spec), tensors.roles());
  EXPECT_THAT(m.wq, ElementsAre(1, 4));
  EXPECT_THAT(m.wk, ElementsAre(2, 5));
  EXPECT_THAT(m.wv, ElementsAre(3, 6));
}

// A fused weight with biases of its parts.
TEST(Weights, FusedWeightWithSeparateBiases) {
  const LayerSpec spec = Resolve(FusedSpec(2, 2, 1, FusedLayout::kPerHead));
  Tensors tensors;
  tensors.Count(TensorRole::kQkvWeight, {6, 1}).Count(TensorRole::kOWeight, {1, 2});
  tensors.Add(TensorRole::kQBias, {2}, {8, 9});
  const LayerMatrices m = *UnpackWeights(spec, tensors.roles());
  EXPECT_THAT(m.bq, ElementsAre(8, 9));
  EXPECT_THAT(m.bk, IsEmpty());
}

// The case's six fused rows for two heads, and its grouped form; the forward test is in
// tests/core/engine.
TEST(Cases, L8_FusedRowsByLayout) {
  EXPECT_THAT(RowsOf(FusedSpec(2, 2, 1, FusedLayout::kPerHead))[2], ElementsAre(3, 6));
  EXPECT_THAT(RowsOf(FusedSpec(2, 2, 1, FusedLayout::kBlocks))[2], ElementsAre(5, 6));
  EXPECT_THAT(RowsOf(FusedSpec(2, 1, 1, FusedLayout::kPerGroup))[2], ElementsAre(4));
  EXPECT_THAT(RowsOf(FusedSpec(2, 1, 1, FusedLayout::kPerGroup))[0], ElementsAre(1, 2));
}

// D 4, H 2 of width 2, with a norm of this kind and span.
LayerSpec NormSpec(NormKind kind, QkNormSpan span) {
  LayerSpec spec = BasicSpec(4, 2);
  spec.qk_norm = QkNormSpec{kind, span, 1e-6};
  return Resolve(spec);
}

Tensors FourWide() {
  Tensors tensors;
  tensors.Count(TensorRole::kQWeight, {4, 4}).Count(TensorRole::kKWeight, {4, 4});
  tensors.Count(TensorRole::kVWeight, {4, 4}).Count(TensorRole::kOWeight, {4, 4});
  return tensors;
}

TEST(Weights, NormsByTheirSpan) {
  Tensors head = FourWide();
  head.Add(TensorRole::kQNorm, {2}, {1, 2}).Add(TensorRole::kKNorm, {2}, {3, 4});
  const LayerMatrices shared =
      *UnpackWeights(NormSpec(NormKind::kRms, QkNormSpan::kHead), head.roles());
  EXPECT_THAT(shared.q_norm, ElementsAre(1, 2));
  EXPECT_THAT(shared.k_norm, ElementsAre(3, 4));
  EXPECT_THAT(shared.q_norm_bias, IsEmpty());
  ExpectInvalid(NormSpec(NormKind::kRms, QkNormSpan::kWidth), head,
                "t.Q_NORM: Q_NORM must have shape [4]; was [2]");
  for (const Shape& shape : {Shape{2, 2}, Shape{4}}) {
    Tensors heads = FourWide();
    heads.Count(TensorRole::kQNorm, shape).Count(TensorRole::kKNorm, shape);
    const LayerMatrices m =
        *UnpackWeights(NormSpec(NormKind::kRms, QkNormSpan::kHeads), heads.roles());
    EXPECT_THAT(m.q_norm, ElementsAre(1, 2, 3, 4));
  }
}

TEST(Weights, NormsOfEachHead) {
  Tensors tensors = FourWide();
  tensors.AddHead(TensorRole::kQNorm, 1, {3, 4}).AddHead(TensorRole::kQNorm, 0, {1, 2});
  tensors.AddHead(TensorRole::kKNorm, 0, {5, 6});
  const LayerSpec spec = NormSpec(NormKind::kLayerNorm, QkNormSpan::kHeads);
  ExpectInvalid(spec, tensors,
                "tensors: K_NORM must be given for each of 2 heads; was absent for 1");
  tensors.AddHead(TensorRole::kKNorm, 1, {7, 8});
  const LayerMatrices m = *UnpackWeights(spec, tensors.roles());
  EXPECT_THAT(m.q_norm, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(m.k_norm, ElementsAre(5, 6, 7, 8));
  Tensors beyond = tensors;
  beyond.AddHead(TensorRole::kKNorm, 2, {7, 8});
  ExpectInvalid(spec, beyond, "tensors: K_NORM must be of a head below 2; was 2");
  Tensors twice = tensors;
  twice.AddHead(TensorRole::kQNorm, 0, {1, 2});
  ExpectInvalid(spec, twice,
                "tensors: Q_NORM must be given once; was \"t.Q_NORM\" and \"t.Q_NORM\"");
}

TEST(Weights, NormsBelongToASpecWithThem) {
  Tensors tensors = FourWide();
  ExpectInvalid(NormSpec(NormKind::kRms, QkNormSpan::kHead), tensors,
                "tensors: Q_NORM must be given; was absent");
  tensors.Add(TensorRole::kQNorm, {2}, {1, 2}).Add(TensorRole::kKNorm, {2}, {3, 4});
  ExpectInvalid(Resolve(BasicSpec(4, 2)), tensors,
                "tensors: Q_NORM needs a spec with qk_norm; was \"t.Q_NORM\"");
  tensors.Add(TensorRole::kQNormBias, {2}, {1, 2});
  ExpectInvalid(NormSpec(NormKind::kRms, QkNormSpan::kHead), tensors,
                "tensors: Q_NORM_BIAS needs the kind LAYER_NORM; was \"t.Q_NORM_BIAS\"");
  const LayerMatrices m =
      *UnpackWeights(NormSpec(NormKind::kLayerNorm, QkNormSpan::kHead), tensors.roles());
  EXPECT_THAT(m.q_norm_bias, ElementsAre(1, 2));
  EXPECT_THAT(m.k_norm_bias, IsEmpty());
}

TEST(Weights, RowsOfAStatisticAreThereWhereTheSpecHasThem) {
  LayerSpec spec = BasicSpec(4, 2);
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kWidth, .q_statistic_rows = 3};
  spec = Resolve(spec);
  Tensors tensors = FourWide();
  tensors.Count(TensorRole::kQNorm, {4}).Count(TensorRole::kKNorm, {4});
  ExpectInvalid(spec, tensors, "tensors: Q_STATISTIC must be given; was absent");
  Tensors narrow = tensors;
  narrow.Count(TensorRole::kQStatistic, {2, 4});
  ExpectInvalid(spec, narrow, "t.Q_STATISTIC: Q_STATISTIC must have shape [3, 4]; was [2, 4]");
  tensors.Count(TensorRole::kQStatistic, {3, 4});
  EXPECT_THAT(UnpackWeights(spec, tensors.roles())->bq_statistic, IsEmpty());
  Tensors biased = tensors;
  biased.Count(TensorRole::kQStatisticBias, {4});
  ExpectInvalid(spec, biased, "t.Q_STATISTIC_BIAS: Q_STATISTIC_BIAS must have shape [3]; was [4]");
  tensors.Count(TensorRole::kQStatisticBias, {3});
  const LayerMatrices m = *UnpackWeights(spec, tensors.roles());
  EXPECT_THAT(m.wq_statistic, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(m.bq_statistic, ElementsAre(1, 2, 3));
  EXPECT_THAT(m.wk_statistic, IsEmpty());
  for (const TensorRole role : {TensorRole::kKStatistic, TensorRole::kKStatisticBias}) {
    Tensors more = tensors;
    more.Count(role, {3, 4});
    const std::string name = TensorRoleName(role);
    ExpectInvalid(
        spec, more,
        "tensors: " + name + " needs a spec with qk_norm.k_statistic_rows; was \"t." + name + "\"");
  }
}

TEST(Weights, PreNormMayHaveAWeightAndABias) {
  Tensors tensors = FourWide();
  LayerSpec spec = Resolve(BasicSpec(4, 2));
  spec.pre_norm = PreNormSpec{NormKind::kRms, 1e-6};
  EXPECT_THAT(UnpackWeights(spec, tensors.roles())->pre_norm, IsEmpty());
  tensors.Count(TensorRole::kPreNorm, {4});
  EXPECT_THAT(UnpackWeights(spec, tensors.roles())->pre_norm, ElementsAre(1, 2, 3, 4));
  ExpectInvalid(Resolve(BasicSpec(4, 2)), tensors,
                "tensors: PRE_NORM needs a spec with pre_norm; was \"t.PRE_NORM\"");
  tensors.Count(TensorRole::kPreNormBias, {4});
  ExpectInvalid(spec, tensors,
                "tensors: PRE_NORM_BIAS needs the kind LAYER_NORM; was \"t.PRE_NORM_BIAS\"");
  spec.pre_norm->kind = NormKind::kLayerNorm;
  EXPECT_THAT(UnpackWeights(spec, tensors.roles())->pre_norm_bias, ElementsAre(1, 2, 3, 4));
  Tensors wide = FourWide();
  wide.Count(TensorRole::kPreNorm, {5});
  ExpectInvalid(spec, wide, "t.PRE_NORM: PRE_NORM must have shape [4]; was [5]");
}

TEST(Weights, SinksAndTables) {
  LayerSpec spec = BasicSpec(4, 2);
  spec.sinks = true;
  ExpectInvalid(Resolve(spec), FourWide(), "tensors: SINKS must be given; was absent");
  PositionBiasSpec& bias = spec.position_bias.emplace();
  bias.kind = PositionBiasKind::kT5Buckets;
  bias.buckets = 3;
  bias.max_distance = 5;
  Tensors tensors = FourWide();
  tensors.Count(TensorRole::kSinks, {2}).Count(TensorRole::kPositionBias, {3, 2});
  const LayerMatrices m = *UnpackWeights(Resolve(spec), tensors.roles());
  EXPECT_THAT(m.sinks, ElementsAre(1, 2));
  EXPECT_THAT(m.position_bias, ElementsAre(1, 2, 3, 4, 5, 6));
  spec.sinks = false;
  ExpectInvalid(Resolve(spec), tensors, "tensors: SINKS needs a spec with sinks; was \"t.SINKS\"");
}

// GPT-2's cross-attention: [in, k of all; v of all], q apart.
TEST(Weights, KAndVInOneBesideQ) {
  LayerSpec spec = BasicSpec(2, 2);
  spec.orientation = Orientation::kInOut;
  spec.fused_layout = FusedLayout::kBlocks;
  Tensors tensors;
  tensors.Count(TensorRole::kQWeight, {2, 2}).Count(TensorRole::kKvWeight, {2, 4});
  tensors.Count(TensorRole::kOWeight, {2, 2}).Add(TensorRole::kKvBias, {4}, {5, 6, 7, 8});
  tensors.Add(TensorRole::kQBias, {2}, {1, 2});
  const LayerMatrices m = *UnpackWeights(Resolve(spec), tensors.roles());
  EXPECT_THAT(m.wq, ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(m.wk, ElementsAre(1, 5, 2, 6));
  EXPECT_THAT(m.wv, ElementsAre(3, 7, 4, 8));
  EXPECT_THAT(m.bq, ElementsAre(1, 2));
  EXPECT_THAT(m.bk, ElementsAre(5, 6));
  EXPECT_THAT(m.bv, ElementsAre(7, 8));
  Tensors mixed = tensors;
  mixed.Count(TensorRole::kKWeight, {2, 2});
  ExpectInvalid(Resolve(spec), mixed,
                "tensors: K_WEIGHT does not belong to a fused layout; was \"t.K_WEIGHT\"");
  spec.fused_layout = FusedLayout::kPerHead;
  EXPECT_FALSE(UnpackWeights(Resolve(spec), tensors.roles()).ok());
}

}  // namespace
}  // namespace headwise
