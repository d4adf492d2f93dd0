// SPDX-License-Identifier: Apache-2.0
// Numbers kept in too little: int8 with the wrong scales, narrow sums.
#include "absl/strings/str_cat.h"
#include "core/audit/mistakes.h"

namespace headwise {
namespace {

// Form 0: activations in int8 too; form 1: weights (or activations) only.
bool SetInt8(WeightScale weights, ActivationScale activations, int64_t form, AuditCase* c) {
  c->plan.weight_scale = weights;
  c->plan.activation_scale = activations;
  c->projection_key += absl::StrCat("int8-", static_cast<int>(weights),
                                    static_cast<int>(activations), c->plan.wrap16 ? "w;" : ";");
  return form < 2;
}

bool WrongAxis(int64_t form, AuditCase* c) {
  const LayerSpec& s = c->spec;
  const bool square = s.q_width() == s.d_model && s.k_width() == s.d_memory &&
                      s.v_width() == s.d_memory && s.z_width() == s.d_out;
  return square && SetInt8(WeightScale::kWrongAxis,
                           form == 0 ? ActivationScale::kRow : ActivationScale::kNone, form, c);
}

bool Wrap16(int64_t form, AuditCase* c) {
  c->plan.wrap16 = true;
  return form == 0 && SetInt8(WeightScale::kChannel, ActivationScale::kRow, form, c);
}

// Form 0: in float; form 1: with projections in int8.
bool U8Weights(int64_t form, AuditCase* c) {
  c->plan.weights_in_u8 = true;
  if (form == 0) return true;
  return form == 1 && SetInt8(WeightScale::kChannel, ActivationScale::kRow, 0, c);
}

constexpr Mistake kMistakes[] = {
    {"int8_weight_tensor", "int8 with one scale per weight tensor instead of per output channel",
     "give each output channel a scale of its own (amax of its weights / 127)", kChangesNumbers,
     [](int64_t form, AuditCase* c) {
       return SetInt8(WeightScale::kTensor,
                      form == 0 ? ActivationScale::kRow : ActivationScale::kNone, form, c);
     }},
    {"int8_x_batch", "int8 with one activation scale for the whole batch instead of per token row",
     "give each token's row a scale of its own (its amax / 127)", kChangesNumbers,
     [](int64_t form, AuditCase* c) {
       return SetInt8(form == 0 ? WeightScale::kChannel : WeightScale::kNone,
                      ActivationScale::kBatch, form, c);
     }},
    {"int8_weight_axis",
     "int8 weights quantised per input channel, dequantised per output channel: the scale is on "
     "the wrong axis",
     "quantise and dequantise weights by the same output channels", kChangesNumbers, WrongAxis},
    {"int8_wrap16", "int8 products are summed in 16-bit accumulators that wrap around",
     "sum int8 products in 32 bits", kChangesNumbers, Wrap16},
    {"int8_u8_weights", "attention weights are rounded to u8 (255 steps)",
     "keep attention weights and p v in bf16 or f32", kChangesNumbers, U8Weights},
    {"bf16_sums", "sums are accumulated in bf16", "accumulate in f32 and round the finished sum",
     kChangesNumbers, nullptr},
};

}  // namespace

absl::Span<const Mistake> NumberMistakes() { return kMistakes; }

}  // namespace headwise
