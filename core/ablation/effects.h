// SPDX-License-Identifier: Apache-2.0
// Effects of ablations from Gram matrices: with the rows c_r = z_r W_O^(r), y and, for every head
// and source that replaces it, d_v = (z_r - z'_r) W_O^(r), an ablation takes away
// Delta = sum (1 - factor_r) c_r + sum d_v, so ‖y - y'‖² = a^T A a and <y, y - y'> = a·b. One
// forward serves every subset of heads.
#ifndef HEADWISE_CORE_ABLATION_EFFECTS_H_
#define HEADWISE_CORE_ABLATION_EFFECTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/ablation/plan.h"
#include "core/request.h"

namespace headwise {

// Sums over one token segment: [rows, rows] row-major, upper triangle; rows as
// AblationPlan::gram_rows has them.
struct SegmentGram {
  std::vector<double> sums;

  double At(size_t rows, size_t r, size_t s) const {
    return sums[(r < s ? r : s) * rows + (r < s ? s : r)];
  }
};

// INVALID_ARGUMENT for a number of resamples or a level out of range.
absl::Status CheckBootstrapOptions(const BootstrapOptions& options);

// Bytes that an ablation holds beside the layer's outputs: Gram sums, rows that replace z, effects,
// resamples. A double, since a request's own numbers multiply.
double AblationBytes(const LayerSpec& spec, const ValidInput& input, const AblationPlan& plan,
                     const BootstrapOptions& bootstrap);

// Turns a greedy sweep's single units into growing sets: next comes the unit that adds least to the
// pooled error, ties to the lowest id. For other plans nothing.
void ChooseGreedily(const std::vector<SegmentGram>& grams, const LayerSpec& spec,
                    AblationPlan* plan);

// Fills y_l2, y_l2_per_sequence, ablations with their intervals, and interactions of `result`.
// `grams` has one entry a segment of the plan, `sequences` is B. A figure whose ‖y‖ is 0 or not
// finite is absent, with a reason.
void ComputeEffects(const AblationPlan& plan, const std::vector<SegmentGram>& grams,
                    const LayerSpec& spec, int64_t sequences, const BootstrapOptions& bootstrap,
                    AblateResult* result);

// gram [B, H, H], b [B, H] and y_sq [B] in F64, summed over each sequence's segments.
std::vector<NamedOutput> GramOutputs(const AblationPlan& plan,
                                     const std::vector<SegmentGram>& grams,
                                     const std::vector<int64_t>& head_ids, int64_t sequences);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_EFFECTS_H_
