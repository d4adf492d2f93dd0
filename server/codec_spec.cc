// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/codec_layer.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

// Core's enums number their values as the wire does, from the wire's `first` on; the wire's
// unspecified value stands for the first, or for core's own kUnspecified.
template <typename Enum>
absl::Status DecodeEnum(int value, int first, int last, const char* field, Enum* out) {
  if (value < 0 || value > last) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": must be a value that headwise.v1 names; was ", value));
  }
  *out = static_cast<Enum>(value < first ? 0 : value - first);
  return absl::OkStatus();
}

static_assert(static_cast<int>(Orientation::kInOut) == v1::IN_OUT);
static_assert(static_cast<int>(RopeLayout::kInterleaved) == v1::RopeSpec::INTERLEAVED);
static_assert(static_cast<int>(FusedLayout::kPerGroup) + v1::SEPARATE == v1::PER_GROUP);
static_assert(static_cast<int>(RopeScaling::kLongRope) + v1::RopeSpec::DEFAULT ==
              v1::RopeSpec::LONGROPE);
static_assert(static_cast<int>(NormKind::kLayerNorm) + v1::QkNormSpec::RMS ==
              v1::QkNormSpec::LAYER_NORM);
static_assert(static_cast<int>(QkNormSpan::kWidth) + v1::QkNormSpec::HEAD == v1::QkNormSpec::WIDTH);
static_assert(static_cast<int>(PositionBiasKind::kT5Buckets) + v1::PositionBiasSpec::ALIBI ==
              v1::PositionBiasSpec::T5_BUCKETS);

// Where the wire's 0 can't be meant, core's default stays.
void SetUnlessZero(double value, double* out) {
  if (value != 0.0) *out = value;
}

absl::Status DecodeRope(const v1::RopeSpec& wire, RopeSpec* rope) {
  absl::Status status =
      DecodeEnum(wire.layout(), 0, v1::RopeSpec::INTERLEAVED, "rope.layout", &rope->layout);
  status.Update(DecodeEnum(wire.scaling(), v1::RopeSpec::DEFAULT, v1::RopeSpec::LONGROPE,
                           "rope.scaling", &rope->scaling));
  rope->dims = wire.dims();
  rope->base = wire.base();
  SetUnlessZero(wire.factor(), &rope->factor);
  rope->original_max_positions = wire.original_max_positions();
  rope->low_freq_factor = wire.low_freq_factor();
  rope->high_freq_factor = wire.high_freq_factor();
  SetUnlessZero(wire.beta_fast(), &rope->beta_fast);
  SetUnlessZero(wire.beta_slow(), &rope->beta_slow);
  if (wire.has_attention_factor()) rope->attention_factor = wire.attention_factor();
  rope->truncate = wire.truncate();
  rope->short_factors.assign(wire.short_factors().begin(), wire.short_factors().end());
  rope->long_factors.assign(wire.long_factors().begin(), wire.long_factors().end());
  return status;
}

absl::Status DecodeNormKind(v1::QkNormSpec::Kind wire, const char* field, NormKind* kind) {
  if (wire == v1::QkNormSpec::KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": must be given; was KIND_UNSPECIFIED"));
  }
  return DecodeEnum(wire, v1::QkNormSpec::RMS, v1::QkNormSpec::LAYER_NORM, field, kind);
}

v1::QkNormSpec::Kind EncodeNormKind(NormKind kind) {
  return static_cast<v1::QkNormSpec::Kind>(static_cast<int>(kind) + v1::QkNormSpec::RMS);
}

absl::Status DecodePreNorm(const v1::PreNormSpec& wire, PreNormSpec* norm) {
  norm->epsilon = wire.epsilon();
  return DecodeNormKind(wire.kind(), "pre_norm.kind", &norm->kind);
}

absl::Status DecodeQkNorm(const v1::QkNormSpec& wire, QkNormSpec* norm) {
  absl::Status status = DecodeNormKind(wire.kind(), "qk_norm.kind", &norm->kind);
  status.Update(DecodeEnum(wire.span(), v1::QkNormSpec::HEAD, v1::QkNormSpec::WIDTH, "qk_norm.span",
                           &norm->span));
  norm->epsilon = wire.epsilon();
  norm->q_statistic_rows = wire.q_statistic_rows();
  norm->k_statistic_rows = wire.k_statistic_rows();
  return status;
}

absl::Status DecodePositionBias(const v1::PositionBiasSpec& wire, PositionBiasSpec* bias) {
  if (wire.kind() == v1::PositionBiasSpec::KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError("position_bias.kind: must be given; was KIND_UNSPECIFIED");
  }
  bias->slopes.assign(wire.slopes().begin(), wire.slopes().end());
  bias->buckets = wire.buckets();
  bias->max_distance = wire.max_distance();
  bias->bidirectional = wire.bidirectional();
  bias->scaled = wire.scaled();
  bias->rounded_to_bf16 = wire.rounded_to_bf16();
  return DecodeEnum(wire.kind(), v1::PositionBiasSpec::ALIBI, v1::PositionBiasSpec::T5_BUCKETS,
                    "position_bias.kind", &bias->kind);
}

void EncodeRope(const RopeSpec& rope, v1::RopeSpec* wire) {
  wire->set_layout(static_cast<v1::RopeSpec::Layout>(rope.layout));
  wire->set_dims(static_cast<uint32_t>(rope.dims));
  wire->set_base(rope.base);
  wire->set_scaling(
      static_cast<v1::RopeSpec::Scaling>(static_cast<int>(rope.scaling) + v1::RopeSpec::DEFAULT));
  if (rope.attention_factor.has_value()) wire->set_attention_factor(*rope.attention_factor);
  if (rope.scaling == RopeScaling::kDefault) return;  // the rest means nothing
  wire->set_factor(rope.factor);
  wire->set_original_max_positions(rope.original_max_positions);
  wire->set_low_freq_factor(rope.low_freq_factor);
  wire->set_high_freq_factor(rope.high_freq_factor);
  wire->set_beta_fast(rope.beta_fast);
  wire->set_beta_slow(rope.beta_slow);
  wire->set_truncate(rope.truncate);
  wire->mutable_short_factors()->Add(rope.short_factors.begin(), rope.short_factors.end());
  wire->mutable_long_factors()->Add(rope.long_factors.begin(), rope.long_factors.end());
}

void EncodeQkNorm(const QkNormSpec& norm, v1::QkNormSpec* wire) {
  wire->set_kind(EncodeNormKind(norm.kind));
  wire->set_span(
      static_cast<v1::QkNormSpec::Span>(static_cast<int>(norm.span) + v1::QkNormSpec::HEAD));
  wire->set_epsilon(norm.epsilon);
  wire->set_q_statistic_rows(static_cast<uint32_t>(norm.q_statistic_rows));
  wire->set_k_statistic_rows(static_cast<uint32_t>(norm.k_statistic_rows));
}

void EncodePositionBias(const PositionBiasSpec& bias, v1::PositionBiasSpec* wire) {
  wire->set_kind(static_cast<v1::PositionBiasSpec::Kind>(static_cast<int>(bias.kind) +
                                                         v1::PositionBiasSpec::ALIBI));
  wire->mutable_slopes()->Add(bias.slopes.begin(), bias.slopes.end());
  wire->set_buckets(static_cast<uint32_t>(bias.buckets));
  wire->set_max_distance(static_cast<uint32_t>(bias.max_distance));
  wire->set_bidirectional(bias.bidirectional);
  wire->set_scaled(bias.scaled);
  wire->set_rounded_to_bf16(bias.rounded_to_bf16);
}

void DecodeWidths(const v1::LayerSpec& wire, LayerSpec* spec) {
  spec->d_model = wire.d_model();
  spec->d_memory = wire.d_memory();
  spec->d_out = wire.d_out();
  spec->heads = wire.heads();
  spec->kv_heads = wire.kv_heads();
  spec->dk = ToInt64s(wire.dk());
  spec->dv = ToInt64s(wire.dv());
  spec->query_to_kv = ToInt64s(wire.query_to_kv());
  spec->head_ids = ToInt64s(wire.head_ids());
}

void EncodeWidths(const LayerSpec& spec, v1::LayerSpec* wire) {
  wire->set_d_model(static_cast<uint32_t>(spec.d_model));
  wire->set_d_memory(static_cast<uint32_t>(spec.d_memory));
  wire->set_d_out(static_cast<uint32_t>(spec.d_out));
  wire->set_heads(static_cast<uint32_t>(spec.heads));
  wire->set_kv_heads(static_cast<uint32_t>(spec.kv_heads));
  SetInt64s(spec.dk, wire->mutable_dk());
  SetInt64s(spec.dv, wire->mutable_dv());
  SetInt64s(spec.query_to_kv, wire->mutable_query_to_kv());
  SetInt64s(spec.head_ids, wire->mutable_head_ids());
}

}  // namespace

absl::StatusOr<LayerSpec> DecodeSpec(const v1::LayerSpec& wire) {
  LayerSpec spec;
  DecodeWidths(wire, &spec);
  absl::Status status =
      DecodeEnum(wire.orientation(), 0, v1::IN_OUT, "orientation", &spec.orientation);
  status.Update(DecodeEnum(wire.fused_layout(), v1::SEPARATE, v1::PER_GROUP, "fused_layout",
                           &spec.fused_layout));
  spec.mask.causal = wire.mask().causal();
  if (wire.mask().has_window()) spec.mask.window = wire.mask().window();
  if (wire.has_scale()) spec.scale = wire.scale();
  if (wire.has_softcap()) spec.softcap = wire.softcap();
  if (wire.has_clip()) spec.clip = wire.clip();
  spec.sinks = wire.sinks();
  spec.gates.assign(wire.gates().begin(), wire.gates().end());
  if (wire.has_rope()) status.Update(DecodeRope(wire.rope(), &spec.rope.emplace()));
  if (wire.has_qk_norm()) status.Update(DecodeQkNorm(wire.qk_norm(), &spec.qk_norm.emplace()));
  if (wire.has_pre_norm()) status.Update(DecodePreNorm(wire.pre_norm(), &spec.pre_norm.emplace()));
  if (wire.has_position_bias()) {
    status.Update(DecodePositionBias(wire.position_bias(), &spec.position_bias.emplace()));
  }
  if (!status.ok()) return status;
  return spec;
}

void EncodeSpec(const LayerSpec& spec, v1::LayerSpec* wire) {
  EncodeWidths(spec, wire);
  wire->set_orientation(static_cast<v1::Orientation>(spec.orientation));
  wire->set_fused_layout(
      static_cast<v1::FusedLayout>(static_cast<int>(spec.fused_layout) + v1::SEPARATE));
  wire->mutable_mask()->set_causal(spec.mask.causal);
  if (spec.mask.window.has_value()) {
    wire->mutable_mask()->set_window(static_cast<uint32_t>(*spec.mask.window));
  }
  if (spec.scale.has_value()) wire->set_scale(*spec.scale);
  if (spec.softcap.has_value()) wire->set_softcap(*spec.softcap);
  if (spec.clip.has_value()) wire->set_clip(*spec.clip);
  wire->set_sinks(spec.sinks);
  wire->mutable_gates()->Add(spec.gates.begin(), spec.gates.end());
  if (spec.rope.has_value()) EncodeRope(*spec.rope, wire->mutable_rope());
  if (spec.qk_norm.has_value()) EncodeQkNorm(*spec.qk_norm, wire->mutable_qk_norm());
  if (spec.pre_norm.has_value()) {
    wire->mutable_pre_norm()->set_kind(EncodeNormKind(spec.pre_norm->kind));
    wire->mutable_pre_norm()->set_epsilon(spec.pre_norm->epsilon);
  }
  if (spec.position_bias.has_value()) {
    EncodePositionBias(*spec.position_bias, wire->mutable_position_bias());
  }
}

}  // namespace headwise
