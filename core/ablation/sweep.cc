// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/sweep.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/rules.h"

namespace headwise {
namespace {

std::vector<SweepUnit> UnitsOf(const LayerSpec& spec, SweepTarget target) {
  std::vector<SweepUnit> units;
  if (target == SweepTarget::kHeads) {
    for (int64_t r = 0; r < spec.heads; ++r) {
      units.push_back({spec.head_ids[static_cast<size_t>(r)], {r}});
    }
  } else {
    for (int64_t g = 0; g < spec.kv_heads; ++g) {
      SweepUnit unit{g, {}};
      for (int64_t r = 0; r < spec.heads; ++r) {
        if (spec.query_to_kv[static_cast<size_t>(r)] == g) unit.heads.push_back(r);
      }
      if (!unit.heads.empty()) units.push_back(std::move(unit));
    }
  }
  // By id, whatever the order of the axis.
  std::sort(units.begin(), units.end(),
            [](const SweepUnit& a, const SweepUnit& b) { return a.id < b.id; });
  return units;
}

absl::Status CheckOrder(const std::vector<int64_t>& order, const std::vector<SweepUnit>& units) {
  std::set<int64_t> seen;
  for (const int64_t id : order) {
    const bool known = std::any_of(units.begin(), units.end(),
                                   [id](const SweepUnit& unit) { return unit.id == id; });
    if (!known)
      return Invalid("order", "must hold ids of the sweep's heads or groups", absl::StrCat(id));
    if (!seen.insert(id).second) return Invalid("order", "must name each once", absl::StrCat(id));
  }
  return absl::OkStatus();
}

// Sums of earlier requests must be of as many folds and heads, or of none.
absl::Status CheckPruneSums(const LayerSpec& spec, const PruneSums& sums, int64_t folds) {
  const size_t count = static_cast<size_t>(folds), heads = static_cast<size_t>(spec.heads);
  const size_t sizes[][2] = {{sums.products.size(), count * heads * heads},
                             {sums.y_sq.size(), count},
                             {sums.tokens.size(), count},
                             {sums.z.size(), count * static_cast<size_t>(spec.z_width())}};
  const bool none = sums.sequences == 0;
  for (const auto& [was, expected] : sizes) {
    if (was == (none ? 0 : expected)) continue;
    return Invalid("prune_sums",
                   absl::StrCat("must be empty or of ", folds, " folds and ", heads, " heads"),
                   absl::StrCat(was, " numbers for ", expected));
  }
  if (sums.sequences >= 0 && sums.queries >= 0 && sums.keys >= 0 && sums.pairs >= 0) {
    return absl::OkStatus();
  }
  return Invalid("prune_sums", "must hold counts of 0 or more", "a negative one");
}

absl::Status PlanFolds(const LayerSpec& spec, const std::vector<int64_t>& lengths,
                       const AblateRequest& request, AblationPlan* plan) {
  constexpr int64_t kMostFolds = 64;
  const Intervention& i = request.sweep_intervention;
  if (i.kind != InterventionKind::kZero || i.token_begin != 0 || i.token_end.has_value() ||
      !i.sequences.empty()) {
    return Invalid("sweep_intervention", "must be ZERO of all tokens for PRUNE_PLAN",
                   "another kind or a selection");
  }
  plan->chained = request.prune_sums.has_value();
  int64_t filled = 0;
  for (const int64_t length : lengths) filled += length == 0 ? 0 : 1;
  const int64_t most = plan->chained ? kMostFolds : std::min(kMostFolds, filled);
  if (request.folds < 2 || request.folds > most) {
    return Invalid(
        "folds",
        absl::StrCat("must be in [2, ", most,
                     plan->chained ? "]" : "], the sequences with tokens but at most 64"),
        absl::StrCat(request.folds));
  }
  plan->folds = request.folds;
  if (plan->chained) {
    plan->prune_sums = *request.prune_sums;
    if (absl::Status sums = CheckPruneSums(spec, plan->prune_sums, plan->folds); !sums.ok()) {
      return sums;
    }
  }
  int64_t next = plan->prune_sums.sequences;
  for (const int64_t length : lengths) {
    plan->fold_of.push_back(length == 0 ? -1 : next % plan->folds);
    next += length == 0 ? 0 : 1;
  }
  return absl::OkStatus();
}

}  // namespace

Ablation OnUnits(const Intervention& intervention, SweepTarget target,
                 const std::vector<int64_t>& ids) {
  Intervention on = intervention;
  on.heads.clear();
  on.groups.clear();
  (target == SweepTarget::kHeads ? on.heads : on.groups) = ids;
  return {{std::move(on)}};
}

absl::StatusOr<std::vector<Ablation>> ExpandSweep(const LayerSpec& spec,
                                                  const std::vector<int64_t>& lengths,
                                                  const AblateRequest& request,
                                                  int64_t max_ablations, AblationPlan* plan) {
  if (request.sweep != SweepKind::kCumulative && !request.order.empty()) {
    return Invalid("order", "goes with CUMULATIVE only", "given");
  }
  if (request.sweep != SweepKind::kPrunePlan && request.prune_sums.has_value()) {
    return Invalid("prune_sums", "goes with PRUNE_PLAN only", "given");
  }
  if (request.sweep == SweepKind::kNone) return request.ablations;
  if (!request.ablations.empty()) {
    return Invalid("ablations", "must be absent beside a sweep",
                   absl::StrCat(request.ablations.size()));
  }
  plan->sweep = request.sweep;
  plan->units = UnitsOf(spec, request.target);
  std::vector<int64_t> ids;
  for (const SweepUnit& unit : plan->units) ids.push_back(unit.id);
  std::vector<Ablation> ablations;
  const auto add = [&](const std::vector<int64_t>& chosen) {
    ablations.push_back(OnUnits(request.sweep_intervention, request.target, chosen));
  };
  const int64_t count = static_cast<int64_t>(ids.size());
  switch (request.sweep) {
    case SweepKind::kNone:
      break;
    case SweepKind::kPrunePlan:
      if (absl::Status folds = PlanFolds(spec, lengths, request, plan); !folds.ok()) return folds;
      [[fallthrough]];
    case SweepKind::kLeaveOneOut:
      for (const int64_t id : ids) add({id});
      break;
    case SweepKind::kKeepOne:
      for (const int64_t kept : ids) {
        std::vector<int64_t> others;
        std::copy_if(ids.begin(), ids.end(), std::back_inserter(others),
                     [kept](int64_t id) { return id != kept; });
        // A layer of one head keeps it: nothing is ablated.
        others.empty() ? ablations.push_back({}) : add(others);
      }
      break;
    case SweepKind::kPairs:
      if (count * (count - 1) / 2 > max_ablations) {
        return absl::ResourceExhaustedError(absl::StrCat("ablations: at most ", max_ablations,
                                                         " a request; was ",
                                                         count * (count - 1) / 2, " pairs"));
      }
      for (size_t a = 0; a < ids.size(); ++a) {
        for (size_t b = a + 1; b < ids.size(); ++b) add({ids[a], ids[b]});
      }
      break;
    case SweepKind::kCumulative: {
      if (absl::Status order = CheckOrder(request.order, plan->units); !order.ok()) return order;
      plan->greedy = request.order.empty();
      std::vector<int64_t> set;
      for (const int64_t id : plan->greedy ? ids : request.order) {
        if (plan->greedy) set.clear();
        set.push_back(id);
        add(set);
      }
      break;
    }
  }
  return ablations;
}

}  // namespace headwise
