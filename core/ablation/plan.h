// SPDX-License-Identifier: Apache-2.0
// Which heads are replaced where: an ablation request, resolved against a layer and its sequences.
#ifndef HEADWISE_CORE_ABLATION_PLAN_H_
#define HEADWISE_CORE_ABLATION_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/layer/spec.h"
#include "core/request.h"

namespace headwise {

// Query positions [begin, end) of one sequence over which every ablation of the plan is constant.
struct TokenSegment {
  int64_t sequence = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// An intervention with heads as axis indices.
struct ResolvedIntervention {
  float factor = 0.0f;             // z'_r = factor * z_r; 0 selects zero, it doesn't multiply
  std::vector<int64_t> heads;      // axis indices, ascending
  std::vector<int64_t> sequences;  // ascending; empty: all
  int64_t token_begin = 0;
  int64_t token_end = 0;  // clipped at each sequence's end
};

struct ResolvedAblation {
  Ablation ablation;           // as meant, for the echo
  std::vector<int64_t> heads;  // ids of all query heads meant, in axis order
  std::vector<ResolvedIntervention> interventions;
};

struct AblationPlan {
  std::vector<ResolvedAblation> ablations;
  std::vector<TokenSegment> segments;  // in sequence order, covering every query position

  // Factor of each head [H] for ablation `a` over `segment`; 1 where it doesn't act.
  void Factors(size_t a, const TokenSegment& segment, std::vector<float>* factors) const;
};

// Expands the sweep, finds heads by id, cuts the sequences into segments. INVALID_ARGUMENT (unknown
// head or group, no target, empty selection, scale that isn't finite), UNIMPLEMENTED (kinds and
// sweeps that are not carried out, by name), RESOURCE_EXHAUSTED (too many ablations).
absl::StatusOr<AblationPlan> PlanAblations(const LayerSpec& spec,
                                           const std::vector<int64_t>& lengths,
                                           const AblateRequest& request, int64_t max_ablations);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_PLAN_H_
