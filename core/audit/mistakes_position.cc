// SPDX-License-Identifier: Apache-2.0
// RoPE and ALiBi.
#include <algorithm>
#include <bit>
#include <cmath>

#include "core/audit/mistakes.h"

namespace headwise {
namespace {

constexpr double kUsualBase = 10000.0;
constexpr double kLongBase = 500000.0;

bool RotateWith(bool q, bool k, int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.rope.has_value()) return false;
  c->plan.rope_q = q;
  c->plan.rope_k = k;
  return true;
}

bool OtherLayout(int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.rope.has_value() || c->spec.rope->dims < 4) return false;
  RopeLayout& layout = c->spec.rope->layout;
  layout = layout == RopeLayout::kHalf ? RopeLayout::kInterleaved : RopeLayout::kHalf;
  return true;
}

bool RotateValues(int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.rope.has_value()) return false;
  c->plan.rope_v = true;
  return *std::min_element(c->spec.dv.begin(), c->spec.dv.end()) >= c->spec.rope->dims;
}

bool OtherBase(int64_t form, AuditCase* c) {
  if (!c->spec.rope.has_value()) return false;
  double& base = c->spec.rope->base;
  if (form > 1 || (base == kUsualBase && form > 0)) return false;
  const double other = base == kUsualBase || form == 1 ? kLongBase : kUsualBase;
  const bool differs = other != base;
  base = other;
  return differs;
}

bool AllDims(int64_t form, AuditCase* c) {
  const LayerSpec& spec = c->spec;
  if (form > 0 || !spec.rope.has_value() || !spec.equal_key_widths()) return false;
  const int64_t width = spec.dk.front();
  if (spec.rope->dims == width || width % 2 != 0) return false;
  if (spec.rope->scaling == RopeScaling::kLongRope) return false;  // factors for its own dims only
  c->spec.rope->dims = width;
  return true;
}

bool HasAlibi(const AuditCase& c) {
  return c.spec.position_bias.has_value() && c.spec.position_bias->kind == PositionBiasKind::kAlibi;
}

bool ScaleAlibi(int64_t form, AuditCase* c) {
  if (form > 0 || !HasAlibi(*c) || c->spec.position_bias->scaled) return false;
  c->spec.position_bias->scaled = true;
  return true;
}

bool FlipAlibi(int64_t form, AuditCase* c) {
  if (form > 0 || !HasAlibi(*c)) return false;
  for (float& slope : c->spec.position_bias->slopes) slope = -slope;
  return true;
}

bool DropAlibi(int64_t form, AuditCase* c) {
  if (form > 0 || !HasAlibi(*c)) return false;
  c->spec.position_bias.reset();
  return true;
}

bool PlainSlopes(int64_t form, AuditCase* c) {
  if (form > 0 || !HasAlibi(*c)) return false;
  if (std::has_single_bit(static_cast<uint64_t>(c->spec.heads))) return false;
  const double heads = static_cast<double>(c->spec.heads);
  for (int64_t head = 0; head < c->spec.heads; ++head) {
    c->spec.position_bias->slopes[static_cast<size_t>(head)] =
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(head + 1) / heads));
  }
  return true;
}

constexpr Mistake kMistakes[] = {
    {"rope_layout",
     "RoPE pairs are of the other kind: half for interleaved or interleaved for half",
     "pair features as the layer declares: (i, i + dims/2) for half, (2i, 2i + 1) for "
     "interleaved",
     kChangesRope, OtherLayout},
    {"rope_on_v", "RoPE is applied to v as well", "rotate q and k only", kChangesRope,
     RotateValues},
    {"rope_base", "RoPE uses the wrong base (10000, or 500000 where 10000 is right)",
     "use the base (rope_theta) that the layer declares", kChangesRope, OtherBase},
    {"rope_shifted", "RoPE positions of the queries start from 1, those of the keys from 0",
     "count the positions of queries and keys from the same number", kChangesRope,
     [](int64_t form, AuditCase* c) {
       c->plan.query_shift = 1;
       return form == 0 && c->spec.rope.has_value();
     }},
    {"rope_no_k", "RoPE is missing on k", "rotate k as well as q", kChangesRope,
     [](int64_t form, AuditCase* c) { return RotateWith(true, false, form, c); }},
    {"rope_no_q", "RoPE is missing on q", "rotate q as well as k", kChangesRope,
     [](int64_t form, AuditCase* c) { return RotateWith(false, true, form, c); }},
    {"rope_missing", "RoPE is not applied at all", "rotate q and k by their positions",
     kChangesRope, [](int64_t form, AuditCase* c) { return RotateWith(false, false, form, c); }},
    {"rope_all_dims", "RoPE rotates all of the head's width, not its rotary part",
     "rotate the first dims features of each head only", kChangesRope, AllDims},
    {"alibi_scaled", "ALiBi is scaled by 1/sqrt(dk) with the scores",
     "add ALiBi after the scores are scaled", kChangesPositionBias, ScaleAlibi},
    {"alibi_sign", "ALiBi has the wrong sign",
     "add slope * (key position - query position), which is negative for past keys",
     kChangesPositionBias, FlipAlibi},
    {"alibi_missing", "ALiBi is missing", "add slope * (key position - query position)",
     kChangesPositionBias, DropAlibi},
    {"alibi_slopes", "ALiBi slopes are 2^(-8h/H) although H is not a power of two",
     "take the slopes of the nearest smaller power of two and interleave those of twice it",
     kChangesPositionBias, PlainSlopes},
};

}  // namespace

absl::Span<const Mistake> PositionMistakes() { return kMistakes; }

}  // namespace headwise
