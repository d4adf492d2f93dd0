// SPDX-License-Identifier: Apache-2.0
// Softmax, scale, soft-cap, sinks and what is left in the weights.
#include <cmath>
#include <limits>
#include <utility>

#include "core/audit/mistakes.h"

namespace headwise {
namespace {

constexpr double kLargestF16 = 65504.0;
constexpr double kLeastF16 = 0x1p-24;

bool SetSoftmax(SoftmaxWay way, AuditCase* c) {
  c->plan.softmax = way;
  return true;
}

// The scale becomes `scale`, 0 meaning its own square.
bool SetScale(double scale, AuditCase* c) {
  c->plan.score_factor.clear();
  for (int64_t head = 0; head < c->spec.heads; ++head) {
    const double own = c->spec.head_scale(head);
    if (own == 0.0) return false;
    c->plan.score_factor.push_back(scale == 0.0 ? own : scale / own);
  }
  return true;
}

bool SetSink(SinkWay way, int64_t form, AuditCase* c) {
  if (form > 0 || c->matrices->sinks.empty()) return false;
  c->plan.sink = way;
  return true;
}

bool Overflow(int64_t form, AuditCase* c) {
  constexpr double kLargest[] = {std::numeric_limits<float>::max(), kLargestF16};
  constexpr double kLeast[] = {std::numeric_limits<float>::denorm_min(), kLeastF16};
  if (form > 1) return false;
  c->plan.largest = kLargest[form];
  c->plan.least = kLeast[form] / 2.0;  // rounds to 0
  return SetSoftmax(SoftmaxWay::kOverflow, c);
}

bool ScaleOneHead(int64_t form, AuditCase* c) {
  if (form >= c->spec.heads || c->spec.head_scale(form) == 0.0) return false;
  c->plan.score_factor.assign(static_cast<size_t>(c->spec.heads), 1.0);
  c->plan.score_factor[static_cast<size_t>(form)] = 1.0 / c->spec.head_scale(form);
  return true;
}

bool ScaleDefault(int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.scale.has_value()) return false;
  c->spec.scale.reset();
  return true;
}

bool CapAfterMask(int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.softcap.has_value()) return false;
  c->plan.mask = MaskWay::kCapped;
  return true;
}

bool CapMissing(int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.softcap.has_value()) return false;
  c->spec.softcap.reset();
  return true;
}

constexpr Mistake kMistakes[] = {
    {"softmax_heads", "softmax runs over the heads instead of the keys",
     "take the softmax over the last axis of scores [H, T, S], the keys", kChangesSoftmax,
     [](int64_t form, AuditCase* c) {
       return form == 0 && c->spec.heads > 1 && SetSoftmax(SoftmaxWay::kHeads, c);
     }},
    {"softmax_queries", "softmax runs over the queries instead of the keys",
     "take the softmax over the last axis of scores [H, T, S], the keys", kChangesSoftmax,
     [](int64_t form, AuditCase* c) { return form == 0 && SetSoftmax(SoftmaxWay::kQueries, c); }},
    {"softmax_none", "no softmax: raw scores are used as weights",
     "put the scores through a softmax over the keys", kChangesSoftmax,
     [](int64_t form, AuditCase* c) { return form == 0 && SetSoftmax(SoftmaxWay::kNone, c); }},
    {"softmax_twice", "softmax is applied twice", "apply the softmax once", kChangesSoftmax,
     [](int64_t form, AuditCase* c) {
       return form < 2 &&
              SetSoftmax(form == 0 ? SoftmaxWay::kTwiceVisible : SoftmaxWay::kTwiceAll, c);
     }},
    {"softmax_overflow", "softmax does not subtract the maximum and exp overflows",
     "subtract each row's largest score before exp", kChangesSoftmax, Overflow},
    {"scale_none", "scores are not scaled at all", "multiply scores by 1/sqrt(dk)", kChangesScale,
     [](int64_t form, AuditCase* c) { return form == 0 && SetScale(1.0, c); }},
    {"scale_sqrt_width", "scores are scaled by 1/sqrt(D), the model width",
     "use 1/sqrt(dk), the key width of one head", kChangesScale,
     [](int64_t form, AuditCase* c) {
       return form == 0 && SetScale(1.0 / std::sqrt(static_cast<double>(c->spec.d_model)), c);
     }},
    {"scale_sqrt_heads", "scores are scaled by 1/sqrt(H), the number of heads",
     "use 1/sqrt(dk), the key width of one head", kChangesScale,
     [](int64_t form, AuditCase* c) {
       return form == 0 && SetScale(1.0 / std::sqrt(static_cast<double>(c->spec.heads)), c);
     }},
    {"scale_twice", "the scale is applied twice (1/dk)", "scale q or the scores, not both",
     kChangesScale, [](int64_t form, AuditCase* c) { return form == 0 && SetScale(0.0, c); }},
    {"scale_one_head", "one head is not scaled", "scale the scores of every head", kChangesScale,
     ScaleOneHead},
    {"scale_default", "scores are scaled by 1/sqrt(dk), not by the layer's own scale",
     "use the scale that the layer declares", kChangesScale, ScaleDefault},
    {"cap_after_mask", "the soft-cap is applied after the mask, so hidden keys get score -cap",
     "apply the soft-cap to the scores before the mask", kChangesCap | kChangesMask, CapAfterMask},
    {"cap_missing", "the soft-cap is missing", "apply cap * tanh(scores / cap) before the mask",
     kChangesCap, CapMissing},
    {"sink_dropped", "the sink is dropped from the softmax",
     "add exp(sink) to the softmax's denominator", kChangesSink,
     [](int64_t form, AuditCase* c) { return SetSink(SinkWay::kNowhere, form, c); }},
    {"sink_in_scores", "the sink is added to every score instead of the denominator",
     "add exp(sink) to the denominator and leave the scores alone", kChangesSink,
     [](int64_t form, AuditCase* c) { return SetSink(SinkWay::kInScores, form, c); }},
    {"sink_in_value", "the sink is added to the value reading z",
     "add exp(sink) to the denominator and nothing to z", kChangesSink,
     [](int64_t form, AuditCase* c) { return SetSink(SinkWay::kInValue, form, c); }},
    {"sink_column", "the weights' first column is cut off instead of the sink's",
     "drop the column that the sink was put in", kChangesSink,
     [](int64_t form, AuditCase* c) { return SetSink(SinkWay::kWrongColumn, form, c); }},
    {"dropout_scale", "dropout's 1/(1-0.1) is left in the weights",
     "switch dropout off when the model isn't trained", kChangesDropout,
     [](int64_t form, AuditCase* c) {
       c->plan.weight_factor = 1.0 / 0.9;
       return form == 0;
     }},
};

}  // namespace

absl::Span<const Mistake> SoftmaxMistakes() { return kMistakes; }

}  // namespace headwise
