// SPDX-License-Identifier: Apache-2.0
// Which heads to drop in which order, and what gates and folded means win back.
#ifndef HEADWISE_CORE_ABLATION_PRUNE_PLAN_H_
#define HEADWISE_CORE_ABLATION_PRUNE_PLAN_H_

#include <cstdint>
#include <vector>

#include "core/ablation/effects.h"
#include "core/ablation/plan.h"
#include "core/request.h"

namespace headwise {

// Adds the sums of the plan's sequences, all but z, to those of earlier requests. `queries` and
// `keys` [B] are the sequences' lengths.
void AddPruneSums(const AblationPlan& plan, const std::vector<SegmentGram>& grams,
                  const LayerSpec& spec, const std::vector<int64_t>& queries,
                  const std::vector<int64_t>& keys, PruneSums* sums);

// Backward greedy on the pooled error; per step the error of y without the dropped heads, with
// gates on those that stay (least squares of ‖(y - b_o) - sum g_r c_r‖², with a little ridge where
// that is singular), with the dropped heads' mean contribution folded into b_o, and with both.
// Errors are those of each fold under what was fitted to the others, pooled; order and gates are
// fitted to all. `sums` are those of all sequences, plan.fold_products theirs too. Without steps
// where there are fewer sequences than folds.
PrunePlan MakePrunePlan(const AblationPlan& plan, const LayerSpec& spec, PruneSums sums);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_PRUNE_PLAN_H_
