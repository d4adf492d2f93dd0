// SPDX-License-Identifier: Apache-2.0
// Effects of ablations from Gram matrices: with the rows c_r = z_r W_O^(r), y and, for every head
// and source that replaces it, d_v = (z_r - z'_r) W_O^(r), an ablation takes away
// Delta = sum (1 - factor_r) c_r + sum d_v, so ‖y - y'‖² = a^T A a and <y, y - y'> = a·b. One
// forward serves every subset of heads.
#ifndef HEADWISE_CORE_ABLATION_EFFECTS_H_
#define HEADWISE_CORE_ABLATION_EFFECTS_H_

#include <cstdint>
#include <optional>
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

// How many tasks' Gram sums of so many rows are held at a time.
int64_t GramTasksAtOnce(int64_t rows);

// Turns a greedy sweep's single units into growing sets: next comes the unit that adds least to the
// pooled error, ties to the lowest id. For other plans nothing.
void ChooseGreedily(const std::vector<SegmentGram>& grams, const LayerSpec& spec,
                    AblationPlan* plan);

// Effects of a plan's ablations, each by itself, so that they can be spread over threads and called
// off in between. All arguments must outlive it. Immutable; thread-safe.
class EffectMaker {
 public:
  // `grams` has one entry a segment of the plan, `sequences` is B.
  EffectMaker(const AblationPlan& plan, const std::vector<SegmentGram>& grams,
              const LayerSpec& spec, int64_t sequences, const BootstrapOptions& bootstrap);

  double y_l2() const;
  std::vector<double> y_l2_per_sequence() const;

  // Ablation `a` with its intervals. A figure whose ‖y‖ is 0 or not finite is absent, with a
  // reason.
  AblationEffect Effect(size_t a) const;

  // The pair of units that ablation `a` of a pairs sweep replaces.
  Interaction PairOf(size_t a) const;

 private:
  const AblationPlan& plan_;
  const std::vector<SegmentGram>& grams_;
  const int64_t heads_, sequences_;
  std::vector<double> y_sq_;    // [B]
  std::vector<int64_t> units_;  // sequences with tokens
  std::optional<Resamples> resamples_;
  std::vector<double> y_sq_resampled_;
  std::vector<size_t> first_unit_;  // of each pair
};

// gram [B, H, H], b [B, H] and y_sq [B] in F64, summed over each sequence's segments.
std::vector<NamedOutput> GramOutputs(const AblationPlan& plan,
                                     const std::vector<SegmentGram>& grams,
                                     const std::vector<int64_t>& head_ids, int64_t sequences);

// Means over valid tokens (those that see a key and aren't hidden by a mask of keys) of each
// sequence.
struct SequenceMeans {
  std::vector<double> z;        // [B, sum dv]; 0 without a valid token
  std::vector<int64_t> tokens;  // [B, H] valid ones
};

// tokens [B] in I64; z_mean [B, sum dv] in F64 with z_tokens [B, H] in I64, from which means of
// several sequences follow.
std::vector<NamedOutput> MeanOutputs(const SequenceMeans& means, const LayerSpec& spec,
                                     const std::vector<int64_t>& lengths);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_EFFECTS_H_
