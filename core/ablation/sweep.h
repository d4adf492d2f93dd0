// SPDX-License-Identifier: Apache-2.0
// Sweeps: the ablations that a name stands for.
#ifndef HEADWISE_CORE_ABLATION_SWEEP_H_
#define HEADWISE_CORE_ABLATION_SWEEP_H_

#include <vector>

#include "absl/status/statusor.h"
#include "core/ablation/plan.h"

namespace headwise {

// The ablations that the request lists or that its sweep stands for; sets the sweep's fields of
// `plan`. A greedy cumulative sweep and a prune plan give each unit alone. INVALID_ARGUMENT.
absl::StatusOr<std::vector<Ablation>> ExpandSweep(const LayerSpec& spec,
                                                  const std::vector<int64_t>& lengths,
                                                  const AblateRequest& request,
                                                  int64_t max_ablations, AblationPlan* plan);

// `intervention` on these units together.
Ablation OnUnits(const Intervention& intervention, SweepTarget target,
                 const std::vector<int64_t>& ids);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_SWEEP_H_
