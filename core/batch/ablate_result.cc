// SPDX-License-Identifier: Apache-2.0
#include "core/batch/ablate_result.h"

#include <algorithm>
#include <utility>

#include "core/ablation/prune_plan.h"

namespace headwise {
namespace {

// The sums of each mean that an ablation takes itself.
void AddMeanSums(const AblationPlan& plan, const WorkResult& work, AblationEffect* effect) {
  const auto& interventions = plan.ablations[static_cast<size_t>(effect->index)].interventions;
  for (const ResolvedIntervention& i : interventions) {
    if (i.sources.empty()) continue;
    const size_t source = i.sources.front();
    const std::vector<int64_t>& heads = plan.sources[source].heads;
    for (size_t at = 0; at < work.mean_sums[source].size(); ++at) {
      if (!std::binary_search(i.heads.begin(), i.heads.end(), heads[at])) continue;
      effect->means.push_back(work.mean_sums[source][at]);
    }
  }
}

}  // namespace

AblateResult MakeAblateResult(WorkItem* item, WorkResult work) {
  AblationWork& ablation = *item->ablation;
  AblationPlan& plan = ablation.plan;
  const LayerSpec& spec = item->layer->spec();
  AblateResult result;
  result.pass = std::move(work.pass);
  result.forwards = 1 + static_cast<int64_t>(plan.donor_inputs.size());
  result.from_gram = plan.from_one_forward();
  result.y_l2 = work.y_l2;
  result.y_l2_per_sequence = std::move(work.y_l2_per_sequence);
  result.ablations = std::move(work.ablations);
  result.interactions = std::move(work.interactions);
  result.outputs = std::move(work.outputs);
  for (AblationEffect& effect : result.ablations) {
    if (ablation.return_sums) AddMeanSums(plan, work, &effect);
  }
  if (plan.sweep == SweepKind::kPrunePlan) {
    PruneSums sums = std::move(plan.prune_sums);
    AddPruneSums(plan, work.grams, spec, item->input.queries, item->input.keys, &sums);
    result.prune_plan = MakePrunePlan(plan, spec, std::move(sums));
  }
  const auto append = [&result](std::vector<NamedOutput> outputs) {
    for (NamedOutput& output : outputs) result.outputs.push_back(std::move(output));
  };
  if (ablation.return_gram) {
    append(GramOutputs(plan, work.grams, spec.head_ids,
                       static_cast<int64_t>(item->input.queries.size())));
  }
  if (ablation.return_means) append(MeanOutputs(work.means, spec, item->input.queries));
  return result;
}

}  // namespace headwise
