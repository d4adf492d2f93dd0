// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/codec_ablation.h"
#include "server/codec_input.h"
#include "server/codec_layer.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Tensor MakeTensor(v1::DType dtype, const std::vector<uint32_t>& shape, size_t bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const uint32_t axis : shape) tensor.add_shape(axis);
  tensor.set_data(std::string(bytes, '\1'));
  return tensor;
}

TEST(CodecTensor, IsAViewOfTheMessagesBytes) {
  const v1::Tensor tensor = MakeTensor(v1::BF16, {2, 3}, 12);
  const absl::StatusOr<TensorView> view = DecodeTensor(tensor, "x");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->dtype, DType::kBF16);
  EXPECT_EQ(view->shape, (Shape{2, 3}));
  EXPECT_EQ(view->data, tensor.data().data());
}

TEST(CodecTensor, TakesEmptyAxesAndScalars) {
  EXPECT_TRUE(DecodeTensor(MakeTensor(v1::F32, {0, 7}, 0), "x").ok());
  EXPECT_TRUE(DecodeTensor(MakeTensor(v1::F64, {}, 8), "x").ok());
}

TEST(CodecTensor, DTypesGoThereAndBack) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32,
                            DType::kI64, DType::kBool}) {
    const absl::StatusOr<TensorView> view =
        DecodeTensor(MakeTensor(EncodeDType(dtype), {2}, 2 * DTypeBytes(dtype)), "x");
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->dtype, dtype);
  }
  EXPECT_EQ(EncodeDType(DType::kU8), v1::BOOL);
  EXPECT_EQ(EncodeDType(DType::kI8), v1::INT8);
}

struct Malformed {
  v1::DType dtype;
  std::vector<uint32_t> shape;
  size_t bytes;
  const char* message;
};

TEST(CodecTensor, RefusesWhatIsMalformed) {
  const uint32_t huge = 0xffffffffu;
  const std::vector<Malformed> all = {
      {v1::F32, {65536, 65536}, 4, "x.data: must hold 17179869184 bytes"},
      {v1::F32, {2, 3}, 23, "x.data: must hold 24 bytes, which is [2, 3] of F32; was 23"},
      {v1::F32, {2, 3}, 25, "was 25"},
      {v1::BOOL, {2, 3}, 24, "x.data: must hold 6 bytes"},
      {v1::F32, {0, 3}, 4, "x.data: must hold 0 bytes"},
      {v1::DTYPE_UNSPECIFIED, {1}, 4, "x.dtype: must be F32"},
      {v1::INT8, {1}, 1, "was INT8"},
      {static_cast<v1::DType>(99), {1}, 1, "x.dtype"},
      {v1::F32, {huge, huge, huge}, 4, "x.shape"},
      {v1::F64, {1u << 31, 1u << 31}, 4, "x.shape"},
      {v1::F32, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 4, "x.shape: must have at most 8 axes; was 9"},
  };
  for (const Malformed& each : all) {
    const absl::StatusOr<TensorView> view =
        DecodeTensor(MakeTensor(each.dtype, each.shape, each.bytes), "x");
    EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument) << each.message;
    EXPECT_THAT(std::string(view.status().message()), HasSubstr(each.message));
  }
}

TEST(CodecTensor, AnswersMoveTheirBytes) {
  NamedOutput output;
  output.name = "z";
  output.shape = {2, 5};
  output.axes = {"token", "feature"};
  output.head_ids = {1, 0};
  output.offsets = {0, 3};
  output.data = std::string(1 << 20, '\7');
  const char* bytes = output.data.data();
  v1::NamedTensor wire;
  EncodeOutput(std::move(output), /*with_data=*/true, &wire);
  EXPECT_EQ(wire.data().data(), bytes);
  EXPECT_EQ(wire.name(), "z");
  EXPECT_THAT(wire.shape(), ElementsAre(2, 5));
  EXPECT_THAT(wire.axes(), ElementsAre("token", "feature"));
  EXPECT_THAT(wire.head_ids(), ElementsAre(1, 0));
  EXPECT_THAT(wire.offsets(), ElementsAre(0, 3));
}

TEST(CodecInput, DecodesEveryField) {
  v1::AttentionInput wire;
  *wire.mutable_x() = MakeTensor(v1::F32, {3, 1}, 12);
  wire.add_lengths(1);
  wire.add_lengths(2);
  *wire.mutable_memory() = MakeTensor(v1::F16, {4, 2}, 16);
  wire.add_memory_lengths(3);
  wire.add_memory_lengths(1);
  wire.mutable_mask()->set_kind(v1::Mask::DROP);
  wire.mutable_mask()->set_form(v1::Mask::PAIR);
  *wire.mutable_mask()->mutable_tensor() = MakeTensor(v1::BOOL, {5}, 5);
  wire.set_causal(v1::Causal::BOTTOM_RIGHT);
  wire.set_window(0);
  *wire.mutable_positions() = MakeTensor(v1::I32, {3}, 12);
  *wire.mutable_memory_positions() = MakeTensor(v1::I64, {4}, 32);
  const absl::StatusOr<AttentionInput> input = DecodeInput(wire);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_THAT(input->lengths, ElementsAre(1, 2));
  EXPECT_EQ(input->memory->dtype, DType::kF16);
  EXPECT_THAT(input->memory_lengths, ElementsAre(3, 1));
  EXPECT_EQ(input->mask->kind, MaskKind::kDrop);
  EXPECT_EQ(input->mask->form, MaskForm::kPair);
  EXPECT_EQ(input->causal, CausalMode::kBottomRight);
  EXPECT_EQ(input->window, 0);
  EXPECT_EQ(input->positions->dtype, DType::kI32);
  EXPECT_EQ(input->memory_positions->dtype, DType::kI64);
}

TEST(CodecInput, RefusesUnsetMaskKindAndUnnamedValues) {
  v1::AttentionInput wire;
  EXPECT_THAT(std::string(DecodeInput(wire).status().message()), HasSubstr("x: must be given"));
  *wire.mutable_x() = MakeTensor(v1::F32, {1, 1}, 4);
  *wire.mutable_mask()->mutable_tensor() = MakeTensor(v1::BOOL, {1}, 1);
  EXPECT_THAT(std::string(DecodeInput(wire).status().message()), HasSubstr("mask.kind"));
  wire.mutable_mask()->set_kind(v1::Mask::KEEP);
  EXPECT_TRUE(DecodeInput(wire).ok());
  wire.set_causal(static_cast<v1::Causal::Alignment>(9));
  EXPECT_EQ(DecodeInput(wire).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CodecForward, OutputsAreBits) {
  v1::ForwardRequest wire;
  *wire.mutable_input()->mutable_x() = MakeTensor(v1::F32, {1, 1}, 4);
  EXPECT_EQ(DecodeForward(wire)->outputs, static_cast<uint32_t>(kOutputY));
  wire.add_outputs(v1::P);
  wire.add_outputs(v1::CONTRIBUTIONS);
  EXPECT_EQ(DecodeForward(wire)->outputs, uint32_t{kOutputP | kOutputContributions});
  wire.add_outputs(v1::OUTPUT_UNSPECIFIED);
  EXPECT_EQ(DecodeForward(wire).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CodecForward, YComesInThreeDtypes) {
  v1::ForwardRequest wire;
  *wire.mutable_input()->mutable_x() = MakeTensor(v1::F32, {1, 1}, 4);
  wire.set_priority(1);
  ASSERT_TRUE(DecodeForward(wire).ok());
  EXPECT_EQ(DecodeForward(wire)->y_dtype, DType::kF32);
  wire.set_y_dtype(v1::BF16);
  EXPECT_EQ(DecodeForward(wire)->y_dtype, DType::kBF16);
  wire.set_y_dtype(v1::F16);
  EXPECT_EQ(DecodeForward(wire)->y_dtype, DType::kF16);
  wire.set_y_dtype(v1::I64);
  EXPECT_EQ(DecodeForward(wire).status().code(), absl::StatusCode::kInvalidArgument);
}

v1::AblateRequest Ablate() {
  v1::AblateRequest wire;
  *wire.mutable_input()->mutable_x() = MakeTensor(v1::F32, {1, 1}, 4);
  return wire;
}

TEST(CodecAblate, DecodesInterventions) {
  v1::AblateRequest wire = Ablate();
  v1::Intervention* one = wire.add_ablations()->add_interventions();
  one->set_kind(v1::Intervention::SCALE);
  one->set_scale(0.5);
  one->add_heads(3);
  one->add_groups(1);
  one->set_token_begin(2);
  one->set_token_end(4);
  one->add_sequences(0);
  wire.add_ablations();
  const absl::StatusOr<AblateRequest> request = DecodeAblate(wire);
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->ablations.size(), 2u);
  const Intervention& decoded = request->ablations[0].interventions[0];
  EXPECT_EQ(decoded.kind, InterventionKind::kScale);
  EXPECT_EQ(decoded.scale, 0.5);
  EXPECT_THAT(decoded.heads, ElementsAre(3));
  EXPECT_THAT(decoded.groups, ElementsAre(1));
  EXPECT_EQ(decoded.token_begin, 2);
  EXPECT_EQ(decoded.token_end, 4);
  EXPECT_THAT(decoded.sequences, ElementsAre(0));
  EXPECT_TRUE(request->ablations[1].interventions.empty());
}

TEST(CodecAblate, RefusesContradictions) {
  v1::AblateRequest wire = Ablate();
  wire.add_ablations()->add_interventions();
  EXPECT_THAT(std::string(DecodeAblate(wire).status().message()),
              HasSubstr("ablations[0].interventions[0].kind"));
  wire = Ablate();
  wire.set_sweep(v1::LEAVE_ONE_OUT);
  EXPECT_EQ(DecodeAblate(wire)->sweep, SweepKind::kLeaveOneOut);
  wire.add_ablations();
  EXPECT_THAT(std::string(DecodeAblate(wire).status().message()), HasSubstr("beside a sweep"));
  wire = Ablate();
  wire.mutable_sweep_intervention()->set_kind(v1::Intervention::ZERO);
  EXPECT_THAT(std::string(DecodeAblate(wire).status().message()), HasSubstr("without a sweep"));
  wire = Ablate();
  wire.set_priority(1);
  EXPECT_TRUE(DecodeAblate(wire).ok());
  wire = Ablate();
  v1::Intervention* zero = wire.add_ablations()->add_interventions();
  zero->set_kind(v1::Intervention::ZERO);
  zero->add_edges();
  EXPECT_THAT(std::string(DecodeAblate(wire).status().message()),
              HasSubstr("ablations[0].interventions[0].edges: must be absent"));
}

TEST(CodecAblate, SettingsOfKindsAndSweepsArrive) {
  v1::AblateRequest wire = Ablate();
  wire.clear_ablations();
  wire.set_sweep(v1::CUMULATIVE);
  wire.add_order(3);
  wire.set_folds(5);
  wire.mutable_bootstrap()->set_level(0.9);
  v1::Intervention* intervention = wire.mutable_sweep_intervention();
  intervention->set_kind(v1::Intervention::RESAMPLE);
  intervention->set_seed(7);
  intervention->set_draws(4);
  const auto request = DecodeAblate(wire);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->order, ElementsAre(3));
  EXPECT_EQ(request->folds, 5);
  EXPECT_EQ(request->bootstrap.level, 0.9);
  EXPECT_EQ(request->bootstrap.resamples, 2000);
  EXPECT_EQ(request->sweep_intervention.seed, 7u);
  EXPECT_EQ(request->sweep_intervention.draws, 4);
  intervention->set_kind(v1::Intervention::KNOCKOUT);
  intervention->clear_draws();
  intervention->add_edges()->set_key(2);
  EXPECT_EQ(DecodeAblate(wire)->sweep_intervention.edges.at(0).key, 2);
}

TEST(CodecAblate, SumsGoOutWhereTheyAreAskedFor) {
  AblateResult result;
  result.ablations.resize(1);
  result.ablations[0].sums = {{{4.0, 1.0, 2.0}, {9.0, 3.0, 5.0}}};
  result.ablations[0].intervals.l2 =
      Interval{.low = 1, .high = 2, .method = IntervalMethod::kRange};
  result.interactions.push_back({{1, 2}, {1.0, 4.0, 1.0, 7.0, 28.0}});
  v1::AblateRequest request = Ablate();
  v1::AblateResult plain, wire;
  EncodeAblate(request, "id", &result, &plain);
  EXPECT_EQ(plain.ablations(0).sums_size(), 0);
  EXPECT_EQ(plain.ablations(0).intervals().l2().method(), "RANGE");
  EXPECT_EQ(plain.interactions(0).interaction(), 0.5);
  EXPECT_EQ(plain.interactions(0).relative_l2(), 0.5);
  request.set_return_sums(true);
  EncodeAblate(request, "id", &result, &wire);
  EXPECT_THAT(wire.ablations(0).sums(), ElementsAre(4, 1, 2, 9, 3, 5));
  EXPECT_THAT(wire.interactions(0).sums(), ElementsAre(1, 4, 1, 7, 28));
}

TEST(CodecAblate, UndefinedFiguresAreAbsent) {
  AblateResult result;
  result.pass.lengths = {2, 3};
  result.ablations.resize(1);
  result.ablations[0].pooled.l2 = 0.0;
  v1::AblateResult wire;
  EncodeAblate(Ablate(), "id", &result, &wire);
  EXPECT_TRUE(wire.ablations(0).effect().has_l2());
  EXPECT_FALSE(wire.ablations(0).effect().has_cosine());
  EXPECT_EQ(wire.scope().n_sequences(), 2u);
  EXPECT_EQ(wire.scope().n_tokens(), 5u);
  EXPECT_EQ(wire.request_id(), "id");
}

TEST(CodecSpec, RoundTrip) {
  v1::LayerSpec wire;
  wire.set_d_model(4);
  wire.set_d_memory(5);
  wire.set_d_out(6);
  wire.set_heads(2);
  wire.set_kv_heads(1);
  for (const uint32_t width : {2u, 2u}) wire.add_dk(width);
  for (const uint32_t width : {3u, 3u}) wire.add_dv(width);
  for (const uint32_t group : {0u, 0u}) wire.add_query_to_kv(group);
  for (const uint32_t id : {7u, 8u}) wire.add_head_ids(id);
  wire.set_scale(0.25);
  wire.set_orientation(v1::IN_OUT);
  wire.set_fused_layout(v1::PER_GROUP);
  wire.mutable_mask()->set_causal(true);
  wire.mutable_mask()->set_window(3);
  v1::RopeSpec* rope = wire.mutable_rope();
  rope->set_layout(v1::RopeSpec::INTERLEAVED);
  rope->set_dims(2);
  rope->set_base(500.0);
  rope->set_scaling(v1::RopeSpec::DEFAULT);
  wire.set_softcap(30.0);
  wire.set_clip(8.0);
  wire.mutable_qk_norm()->set_kind(v1::QkNormSpec::LAYER_NORM);
  wire.mutable_qk_norm()->set_span(v1::QkNormSpec::WIDTH);
  wire.mutable_qk_norm()->set_epsilon(1e-5);
  wire.mutable_qk_norm()->set_q_statistic_rows(6);
  wire.mutable_qk_norm()->set_k_statistic_rows(3);
  wire.mutable_pre_norm()->set_kind(v1::QkNormSpec::RMS_PLUS_ONE);
  wire.mutable_pre_norm()->set_epsilon(1e-3);
  wire.mutable_position_bias()->set_kind(v1::PositionBiasSpec::T5_BUCKETS);
  wire.mutable_position_bias()->set_buckets(32);
  wire.set_sinks(true);
  wire.add_gates(0.5f);
  const absl::StatusOr<LayerSpec> spec = DecodeSpec(wire);
  ASSERT_TRUE(spec.ok()) << spec.status();
  v1::LayerSpec back;
  EncodeSpec(*spec, &back);
  EXPECT_EQ(back.DebugString(), wire.DebugString());
}

TEST(CodecSpec, RoundTripsAlibiAndScalings) {
  v1::LayerSpec wire;
  wire.mutable_mask();
  wire.set_fused_layout(v1::SEPARATE);
  v1::PositionBiasSpec* bias = wire.mutable_position_bias();
  bias->set_kind(v1::PositionBiasSpec::ALIBI);
  bias->add_slopes(0.5f);
  bias->set_scaled(true);
  bias->set_rounded_to_bf16(true);
  v1::RopeSpec* rope = wire.mutable_rope();
  rope->set_layout(v1::RopeSpec::HALF);
  rope->set_base(5000.0);
  rope->set_scaling(v1::RopeSpec::LONGROPE);
  rope->set_factor(4.0);
  rope->set_original_max_positions(64.0);
  rope->set_beta_fast(32.0);
  rope->set_beta_slow(1.0);
  rope->set_attention_factor(1.25);
  rope->add_short_factors(1.5);
  rope->add_long_factors(2.5);
  const absl::StatusOr<LayerSpec> spec = DecodeSpec(wire);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->position_bias->rounded_to_bf16);
  v1::LayerSpec back;
  EncodeSpec(*spec, &back);
  EXPECT_EQ(back.DebugString(), wire.DebugString());
}

TEST(CodecSpec, TheWiresZeroesMeanDefaults) {
  v1::LayerSpec wire;
  wire.mutable_rope()->set_scaling(v1::RopeSpec::YARN);
  const absl::StatusOr<LayerSpec> spec = DecodeSpec(wire);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->orientation, Orientation::kUnspecified);
  EXPECT_EQ(spec->fused_layout, FusedLayout::kSeparate);
  EXPECT_EQ(spec->rope->beta_fast, RopeSpec().beta_fast);
  EXPECT_FALSE(spec->scale.has_value());
  EXPECT_FALSE(spec->mask.window.has_value());
}

TEST(CodecSpec, RefusesUnnamedValues) {
  v1::LayerSpec wire;
  wire.set_orientation(static_cast<v1::Orientation>(5));
  EXPECT_EQ(DecodeSpec(wire).status().code(), absl::StatusCode::kInvalidArgument);
  wire.Clear();
  wire.mutable_qk_norm();
  EXPECT_THAT(std::string(DecodeSpec(wire).status().message()), HasSubstr("qk_norm.kind"));
  wire.Clear();
  wire.mutable_pre_norm();
  EXPECT_THAT(std::string(DecodeSpec(wire).status().message()), HasSubstr("pre_norm.kind"));
}

TEST(CodecLayer, TensorNamesGiveTheirRoles) {
  v1::TensorNames wire;
  wire.set_q("wq");
  wire.set_kv("wkv");
  wire.set_o("wo");
  wire.set_kv_bias("bkv");
  wire.set_sinks("s");
  wire.set_position_bias("table");
  wire.set_k_norm("nk");
  wire.set_pre_norm("pn");
  wire.set_pre_norm_bias("pnb");
  wire.set_q_statistic("qs");
  wire.set_k_statistic_bias("ksb");
  wire.add_q_norm_heads("n0");
  wire.add_q_norm_heads("n1");
  std::vector<std::string> uses;
  for (const TensorUse& use : DecodeTensorNames(wire)) {
    uses.push_back(absl::StrCat(TensorRoleName(use.role), " ", use.name, " ", use.head));
  }
  EXPECT_THAT(uses, ElementsAre("Q_WEIGHT wq -1", "O_WEIGHT wo -1", "K_NORM nk -1", "SINKS s -1",
                                "POSITION_BIAS table -1", "KV_WEIGHT wkv -1", "KV_BIAS bkv -1",
                                "PRE_NORM pn -1", "PRE_NORM_BIAS pnb -1", "Q_STATISTIC qs -1",
                                "K_STATISTIC_BIAS ksb -1", "Q_NORM n0 0", "Q_NORM n1 1"));
}

TEST(CodecLayer, OnlyWeightsHaveAnOrientation) {
  LayerInfo info;
  info.spec.orientation = Orientation::kInOut;
  for (const TensorRole role :
       {TensorRole::kOWeight, TensorRole::kKvWeight, TensorRole::kOBias, TensorRole::kQNorm,
        TensorRole::kSinks, TensorRole::kPositionBias, TensorRole::kKvBias, TensorRole::kPreNorm,
        TensorRole::kPreNormBias, TensorRole::kKStatistic, TensorRole::kQStatisticBias}) {
    info.tensors.push_back({role, "t", DType::kF32, {2}});
  }
  v1::LayerDetails wire;
  EncodeDetails(info, {}, &wire);
  std::vector<std::string> tensors;
  for (const v1::LayerTensor& tensor : wire.tensors()) {
    tensors.push_back(absl::StrCat(v1::LayerTensor::Role_Name(tensor.role()), " ",
                                   v1::Orientation_Name(tensor.orientation())));
  }
  constexpr char kNone[] = " ORIENTATION_UNSPECIFIED";
  EXPECT_THAT(tensors,
              ElementsAre("O_WEIGHT IN_OUT", "KV_WEIGHT IN_OUT", absl::StrCat("O_BIAS", kNone),
                          absl::StrCat("Q_NORM", kNone), absl::StrCat("SINKS", kNone),
                          absl::StrCat("POSITION_BIAS", kNone), absl::StrCat("KV_BIAS", kNone),
                          absl::StrCat("PRE_NORM", kNone), absl::StrCat("PRE_NORM_BIAS", kNone),
                          "K_STATISTIC IN_OUT", absl::StrCat("Q_STATISTIC_BIAS", kNone)));
}

TEST(CodecLayer, ReducedDtypesAreNamed) {
  EXPECT_EQ(*DecodeLayerDType(v1::DTYPE_UNSPECIFIED), DType::kF32);
  EXPECT_EQ(*DecodeLayerDType(v1::F32), DType::kF32);
  EXPECT_EQ(*DecodeLayerDType(v1::BF16), DType::kBF16);
  EXPECT_EQ(*DecodeLayerDType(v1::INT8), DType::kI8);
  EXPECT_EQ(DecodeLayerDType(v1::I64).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headwise
