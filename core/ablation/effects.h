// SPDX-License-Identifier: Apache-2.0
// Effects of ablations from Gram matrices: ‖y - y'‖² = a^T A a, <y, y - y'> = a·b, with
// A_rs = <c_r, c_s>, b_r = <y, c_r>, a_r = 1 - factor_r. One forward serves every subset of heads.
#ifndef HEADWISE_CORE_ABLATION_EFFECTS_H_
#define HEADWISE_CORE_ABLATION_EFFECTS_H_

#include <cstdint>
#include <vector>

#include "core/ablation/plan.h"
#include "core/request.h"

namespace headwise {

// Sums over one token segment: [H + 1, H + 1] row-major, upper triangle; row H is y.
struct SegmentGram {
  std::vector<double> sums;
};

// Fills y_l2, y_l2_per_sequence and ablations of `result`. `grams` has one entry a segment of the
// plan, `sequences` is B. A figure whose ‖y‖ is 0 or not finite is absent, with a reason.
void ComputeEffects(const AblationPlan& plan, const std::vector<SegmentGram>& grams, int64_t heads,
                    int64_t sequences, AblateResult* result);

// gram [B, H, H], b [B, H] and y_sq [B] in F64, summed over each sequence's segments.
std::vector<NamedOutput> GramOutputs(const AblationPlan& plan,
                                     const std::vector<SegmentGram>& grams,
                                     const std::vector<int64_t>& head_ids, int64_t sequences);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_EFFECTS_H_
