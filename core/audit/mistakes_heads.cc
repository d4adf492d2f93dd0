// SPDX-License-Identifier: Apache-2.0
// The head axis: splitting into heads, joining them, which key/value head a head reads, ablation.
#include <algorithm>
#include <numeric>

#include "core/audit/mistakes.h"

namespace headwise {
namespace {

bool EqualHeads(const AuditCase& c) { return c.spec.equal_widths() && c.spec.heads > 1; }

bool SetSplit(SplitWay way, int64_t form, AuditCase* c) {
  if (form > 0 || !EqualHeads(*c)) return false;
  c->plan.split = way;
  return true;
}

bool SetMerge(MergeWay way, int64_t form, AuditCase* c) {
  if (form > 0 || !EqualHeads(*c)) return false;
  c->plan.merge = way;
  return true;
}

// Place r holds head (sign r + shift) modulo H.
bool SetOrder(int64_t sign, int64_t shift, AuditCase* c) {
  if (!EqualHeads(*c)) return false;
  const int64_t heads = c->spec.heads;
  c->plan.order.clear();
  for (int64_t r = 0; r < heads; ++r) {
    c->plan.order.push_back((sign * r + shift + 2 * heads) % heads);
  }
  return true;
}

bool AttendWithinTokens(int64_t form, AuditCase* c) {
  if (form > 3 || !EqualHeads(*c) || c->input->lengths != c->input->memory_lengths) return false;
  c->plan.attend = form % 2 == 0 ? AttendWay::kHeadsOfToken : AttendWay::kHeadsOfTokenCausal;
  // Whoever turned heads and tokens back afterwards has turned them once too often.
  if (form > 1) c->plan.merge = MergeWay::kNoTranspose;
  return true;
}

bool SetGroups(int64_t form, AuditCase* c, int64_t (*group)(int64_t own, int64_t head, int64_t n)) {
  if (form > 0 || !EqualHeads(*c) || c->spec.kv_heads == c->spec.heads) return false;
  const std::vector<int64_t> own = c->spec.query_to_kv;
  for (int64_t r = 0; r < c->spec.heads; ++r) {
    int64_t& entry = c->spec.query_to_kv[static_cast<size_t>(r)];
    entry = group(entry, r, c->spec.kv_heads);
  }
  return c->spec.query_to_kv != own;
}

bool AblateAfterOut(int64_t form, AuditCase* c) {
  if (c->spec.d_out % c->spec.heads != 0) return false;
  if (!c->ablated.empty()) {
    c->plan.zero_slices = c->ablated;
    c->gates.clear();
    return form == 0;
  }
  c->plan.zero_slices = {form};
  return form < c->spec.heads;
}

constexpr Mistake kMistakes[] = {
    {"reshape_split", "q, k, v are reshaped to heads without the transpose",
     "view [T, H*dk] as [T, H, dk], then transpose to [H, T, dk]", kChangesSplit,
     [](int64_t form, AuditCase* c) { return SetSplit(SplitWay::kNoTranspose, form, c); }},
    {"reshape_merge", "heads are merged without the transpose: concatenated on the token axis",
     "transpose [H, T, dv] to [T, H, dv] before viewing it as [T, H*dv]", kChangesMerge,
     [](int64_t form, AuditCase* c) { return SetMerge(MergeWay::kNoTranspose, form, c); }},
    {"reshape_both", "no transpose before the reshape, neither to heads nor back",
     "transpose tokens and heads after splitting and before merging", kChangesSplit | kChangesMerge,
     [](int64_t form, AuditCase* c) {
       return SetSplit(SplitWay::kNoTranspose, form, c) &&
              SetMerge(MergeWay::kNoTranspose, form, c);
     }},
    {"reshape_attend",
     "no transpose of tokens and heads before the matmul: each token's heads attend to each "
     "other",
     "transpose [T, H, dk] to [H, T, dk] before q k^T",
     kChangesSplit | kChangesMerge | kChangesReach | kChangesMask | kChangesSoftmax |
         kChangesPositionBias | kChangesSink | kChangesCap,
     AttendWithinTokens},
    {"reshape_features", "q, k, v are split as [T, dk, H]: the head index is the fastest",
     "view the features as [H, dk], the head first", kChangesSplit,
     [](int64_t form, AuditCase* c) { return SetSplit(SplitWay::kFeatures, form, c); }},
    {"concat_features",
     "heads are concatenated on the wrong axis: feature by feature, the head index is the "
     "fastest",
     "put whole heads one after the other: [T, H, dv] to [T, H*dv]", kChangesMerge,
     [](int64_t form, AuditCase* c) { return SetMerge(MergeWay::kFeatures, form, c); }},
    {"concat_batch", "heads are concatenated on the batch axis",
     "concatenate heads on the feature axis", kChangesMerge,
     [](int64_t form, AuditCase* c) { return SetMerge(MergeWay::kBatch, form, c); }},
    {"heads_reversed", "heads are concatenated in the wrong order (reversed)",
     "concatenate heads in the order 0, 1, …, H-1", kChangesMerge,
     [](int64_t form, AuditCase* c) { return form == 0 && SetOrder(-1, -1, c); }},
    {"heads_rolled", "heads are concatenated in the wrong order (rolled by one)",
     "concatenate heads in the order 0, 1, …, H-1", kChangesMerge,
     [](int64_t form, AuditCase* c) { return form < 2 && SetOrder(1, form == 0 ? 1 : -1, c); }},
    {"heads_shuffled", "heads are concatenated in the wrong order (some permutation)",
     "concatenate heads in the order 0, 1, …, H-1", kChangesMerge, nullptr},
    {"heads_summed", "head outputs are summed instead of concatenated: every slot holds the sum",
     "concatenate the heads' outputs", kChangesMerge,
     [](int64_t form, AuditCase* c) { return SetMerge(MergeWay::kSum, form, c); }},
    {"gqa_tiled", "key/value heads are tiled (0,1,0,1) instead of grouped (0,0,1,1)",
     "repeat each key/value head H/G times in a row (repeat_interleave, not repeat)",
     kChangesGroups,
     [](int64_t form, AuditCase* c) {
       return SetGroups(form, c, [](int64_t, int64_t head, int64_t n) { return head % n; });
     }},
    {"gqa_next", "query heads read the next group's key/value head",
     "let query head r read key/value head r / (H/G)", kChangesGroups,
     [](int64_t form, AuditCase* c) {
       return SetGroups(form, c, [](int64_t own, int64_t, int64_t n) { return (own + 1) % n; });
     }},
    {"gqa_first", "all query heads read key/value head 0",
     "let query head r read key/value head r / (H/G)", kChangesGroups,
     [](int64_t form, AuditCase* c) {
       return SetGroups(form, c, [](int64_t, int64_t, int64_t) { return int64_t{0}; });
     }},
    {"ablation_after_wo",
     "a head was ablated after W_O: a slice of y is zero instead of the head's z",
     "set the head's slice of z to zero, before W_O", kChangesAblation, AblateAfterOut},
};

}  // namespace

absl::Span<const Mistake> HeadMistakes() { return kMistakes; }

}  // namespace headwise
