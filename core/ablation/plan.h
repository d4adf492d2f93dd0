// SPDX-License-Identifier: Apache-2.0
// Which heads are replaced where and by what: an ablation request, resolved against a layer and its
// sequences.
#ifndef HEADWISE_CORE_ABLATION_PLAN_H_
#define HEADWISE_CORE_ABLATION_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/layer/spec.h"
#include "core/request.h"

namespace headwise {

struct ValidInput;

// Query positions [begin, end) of one sequence over which every ablation of the plan is constant.
struct TokenSegment {
  int64_t sequence = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Which query positions an intervention means.
struct TokenSelection {
  std::vector<int64_t> sequences;  // ascending; empty: all
  int64_t begin = 0;
  int64_t end = 0;  // clipped at each sequence's end

  // True if a query position of the sequence is selected.
  bool Touches(int64_t sequence, int64_t length) const;
  // True if all of the segment is selected.
  bool Covers(const TokenSegment& segment) const;
  bool operator==(const TokenSelection&) const = default;
};

// Where z'_r comes from if it isn't a multiple of z_r. Heads share a source.
struct ReplacementSource {
  InterventionKind kind = InterventionKind::kMean;
  TokenSelection selection;
  std::vector<int64_t> heads;    // axis indices that use it, ascending
  std::vector<int64_t> columns;  // [H] first column of a head in `width`; -1: not of this source
  int64_t width = 0;             // sum of dv of `heads`
  // Given numbers, [width] for kMean (empty: to be taken), [N, width] for kReplace.
  std::vector<float> given;
  std::vector<int64_t> partners;  // kResample: [B] the sequence that stands in; -1: not selected
  size_t donor = 0;               // kDonor: index in AblationPlan::donors
  std::vector<Edge> edges;        // kKnockout, ascending
};

// One head from one source: a row of the Gram matrix, (z_r - z'_r) W_O^(r).
struct Variant {
  size_t source = 0;
  int64_t head = 0;
};

// An intervention with heads as axis indices.
struct ResolvedIntervention {
  float factor = 0.0f;         // z'_r = factor * z_r; 0 selects zero, it doesn't multiply
  std::vector<int64_t> heads;  // axis indices, ascending
  TokenSelection selection;
  std::vector<size_t> sources;  // one a draw; empty: `factor`
};

// What one head undergoes in one segment.
struct HeadAction {
  float factor = 1.0f;
  int64_t variant = -1;  // >= 0: replaced by it, whatever `factor`

  bool acts() const { return variant >= 0 || factor != 1.0f; }
};

struct ResolvedAblation {
  Ablation ablation;           // as meant, for the echo
  std::vector<int64_t> heads;  // ids of all query heads meant, in axis order
  std::vector<ResolvedIntervention> interventions;
  size_t draws = 1;
};

// A head or a group that a sweep runs over.
struct SweepUnit {
  int64_t id = 0;
  std::vector<int64_t> heads;  // axis indices, ascending
};

struct AblationPlan {
  std::vector<ResolvedAblation> ablations;
  std::vector<TokenSegment> segments;  // in sequence order, covering every query position
  std::vector<ReplacementSource> sources;
  std::vector<Variant> variants;
  std::vector<std::shared_ptr<const AttentionInput>> donors;
  std::vector<std::shared_ptr<const ValidInput>> donor_inputs;  // by ValidateDonors

  // The sweep, where there is one.
  SweepKind sweep = SweepKind::kNone;
  std::vector<SweepUnit> units;  // by id
  bool greedy = false;  // kCumulative: `ablations` are each unit alone until the sums are known
  int64_t folds = 0;    // kPrunePlan
  std::vector<int64_t> fold_of;  // [B]; -1: a sequence without tokens
  PruneSums prune_sums;          // kPrunePlan: of earlier requests, then with this one's z
  bool chained = false;          // kPrunePlan: earlier requests' sums were given
  // kPrunePlan, left by the pass: the folds' sums of contributions over tokens, [folds, H, d_out],
  // and their products [folds * H, folds * H], row-major.
  std::vector<float> fold_contributions;
  std::vector<double> fold_products;

  // Rows of a segment's Gram matrix: c_0 … c_{H-1}, y, then the variants.
  int64_t gram_rows(int64_t heads) const {
    return heads + 1 + static_cast<int64_t>(variants.size());
  }

  // What each head undergoes [H] in draw `draw` of ablation `a` over `segment`.
  void Actions(size_t a, size_t draw, const TokenSegment& segment,
               std::vector<HeadAction>* actions) const;
  int64_t VariantOf(size_t source, int64_t head) const;

  // Whether the figures are sums of one plain forward.
  bool from_one_forward() const;

  // [sources][H]: index in `variants`, or -1.
  std::vector<std::vector<int64_t>> variant_index;
};

// Expands the sweep, finds heads by id, cuts the sequences into segments. INVALID_ARGUMENT (unknown
// head or group, no target, empty selection, scale that isn't finite, a tensor, edge, order or
// donor that doesn't fit), RESOURCE_EXHAUSTED (too many ablations).
absl::StatusOr<AblationPlan> PlanAblations(const LayerSpec& spec,
                                           const std::vector<int64_t>& lengths,
                                           const AblateRequest& request, int64_t max_ablations);

// Checks the plan's donors as inputs of the layer and fills donor_inputs. `input` is the request's
// own. INVALID_ARGUMENT for what ValidateInput refuses, for another number of sequences than one
// or the request's, and for a donor shorter than what it stands in for.
absl::Status ValidateDonors(const LayerSpec& spec, const ValidInput& input, int64_t max_sequences,
                            AblationPlan* plan);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_PLAN_H_
