// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/ablation/source.h"
#include "core/ablation/sweep.h"
#include "core/base/rules.h"

namespace headwise {
namespace {

// Axis indices of the heads that an intervention means.
absl::StatusOr<std::vector<int64_t>> FindHeads(const LayerSpec& spec,
                                               const Intervention& intervention) {
  std::set<int64_t> heads;
  for (const int64_t id : intervention.heads) {
    const auto found = std::find(spec.head_ids.begin(), spec.head_ids.end(), id);
    if (found == spec.head_ids.end()) {
      return Invalid("heads",
                     absl::StrCat("must be ids of the layer's heads (",
                                  absl::StrJoin(spec.head_ids, ","), ")"),
                     absl::StrCat(id));
    }
    heads.insert(found - spec.head_ids.begin());
  }
  for (const int64_t group : intervention.groups) {
    if (group < 0 || group >= spec.kv_heads) {
      return Invalid("groups", absl::StrCat("must be key/value heads in [0, ", spec.kv_heads, ")"),
                     absl::StrCat(group));
    }
    for (int64_t r = 0; r < spec.heads; ++r) {
      if (spec.query_to_kv[static_cast<size_t>(r)] == group) heads.insert(r);
    }
  }
  if (heads.empty()) return Invalid("interventions", "must name heads or groups", "none");
  return std::vector<int64_t>(heads.begin(), heads.end());
}

// The factor of kZero and kScale, the sources of all others.
absl::Status FindReplacement(const Intervention& intervention, SourceMaker* sources,
                             ResolvedIntervention* resolved) {
  switch (intervention.kind) {
    case InterventionKind::kZero:
      resolved->factor = 0.0f;
      return absl::OkStatus();
    case InterventionKind::kScale:
      if (!std::isfinite(intervention.scale)) {
        return Invalid("scale", "must be finite", absl::StrCat(intervention.scale));
      }
      resolved->factor = static_cast<float>(intervention.scale);
      return absl::OkStatus();
    default:
      return sources->Add(intervention, resolved);
  }
}

absl::StatusOr<ResolvedIntervention> Resolve(const LayerSpec& spec,
                                             const std::vector<int64_t>& lengths,
                                             const Intervention& intervention,
                                             SourceMaker* sources) {
  ResolvedIntervention resolved;
  auto heads = FindHeads(spec, intervention);
  if (!heads.ok()) return heads.status();
  resolved.heads = *std::move(heads);
  const int64_t sequences = static_cast<int64_t>(lengths.size());
  const std::set<int64_t> chosen(intervention.sequences.begin(), intervention.sequences.end());
  for (const int64_t sequence : chosen) {
    if (sequence < 0 || sequence >= sequences) {
      return Invalid("sequences", absl::StrCat("must be in [0, ", sequences, ")"),
                     absl::StrCat(sequence));
    }
  }
  TokenSelection& selection = resolved.selection;
  selection.sequences.assign(chosen.begin(), chosen.end());
  selection.begin = intervention.token_begin;
  selection.end =
      intervention.token_end.value_or(*std::max_element(lengths.begin(), lengths.end()));
  for (int64_t s = 0; s < sequences; ++s) {
    if (!selection.Touches(s, lengths[static_cast<size_t>(s)])) continue;
    if (absl::Status found = FindReplacement(intervention, sources, &resolved); !found.ok()) {
      return found;
    }
    return resolved;
  }
  return Invalid(
      "token range", "must select a token of the request",
      absl::StrCat("[", intervention.token_begin, ", ",
                   intervention.token_end ? absl::StrCat(*intervention.token_end) : "end", ")"));
}

std::vector<TokenSegment> CutSegments(const std::vector<int64_t>& lengths,
                                      const std::vector<ResolvedAblation>& ablations) {
  std::vector<TokenSegment> segments;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t sequence = static_cast<int64_t>(s);
    std::set<int64_t> cuts = {0, lengths[s]};
    for (const ResolvedAblation& ablation : ablations) {
      for (const ResolvedIntervention& intervention : ablation.interventions) {
        const TokenSelection& selection = intervention.selection;
        if (!selection.Touches(sequence, lengths[s])) continue;
        cuts.insert(selection.begin);
        cuts.insert(std::min(selection.end, lengths[s]));
      }
    }
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
      segments.push_back({sequence, *cut, *std::next(cut)});
    }
  }
  return segments;
}

}  // namespace

bool TokenSelection::Touches(int64_t sequence, int64_t length) const {
  return begin < std::min(end, length) &&
         (sequences.empty() || std::binary_search(sequences.begin(), sequences.end(), sequence));
}

bool TokenSelection::Covers(const TokenSegment& segment) const {
  return Touches(segment.sequence, segment.end) && begin <= segment.begin && segment.end <= end;
}

int64_t AblationPlan::VariantOf(size_t source, int64_t head) const {
  return variant_index[source][static_cast<size_t>(head)];
}

bool AblationPlan::from_one_forward() const {
  return std::none_of(sources.begin(), sources.end(), [](const ReplacementSource& s) {
    return s.kind == InterventionKind::kDonor || s.kind == InterventionKind::kUniform ||
           s.kind == InterventionKind::kKnockout;
  });
}

void AblationPlan::Actions(size_t a, size_t draw, const TokenSegment& segment,
                           std::vector<HeadAction>* actions) const {
  std::fill(actions->begin(), actions->end(), HeadAction{});
  for (const ResolvedIntervention& i : ablations[a].interventions) {
    if (!i.selection.Covers(segment)) continue;
    for (const int64_t head : i.heads) {
      HeadAction& action = (*actions)[static_cast<size_t>(head)];
      action = {.factor = i.factor, .variant = -1};
      // With fewer draws than others in its ablation an intervention begins again.
      if (!i.sources.empty()) action.variant = VariantOf(i.sources[draw % i.sources.size()], head);
    }
  }
}

absl::StatusOr<AblationPlan> PlanAblations(const LayerSpec& spec,
                                           const std::vector<int64_t>& lengths,
                                           const AblateRequest& request, int64_t max_ablations) {
  AblationPlan plan;
  auto ablations = ExpandSweep(spec, lengths, request, max_ablations, &plan);
  if (!ablations.ok()) return ablations.status();
  if (static_cast<int64_t>(ablations->size()) > max_ablations) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ablations: at most ", max_ablations, " a request; was ", ablations->size()));
  }
  SourceMaker sources(spec, lengths, &plan);
  for (Ablation& ablation : *ablations) {
    ResolvedAblation resolved;
    std::set<int64_t> meant;
    for (const Intervention& intervention : ablation.interventions) {
      if (lengths.empty()) {
        return Invalid("token range", "must select a token of the request", "no sequences");
      }
      auto one = Resolve(spec, lengths, intervention, &sources);
      if (!one.ok()) return one.status();
      meant.insert(one->heads.begin(), one->heads.end());
      resolved.draws = std::max(resolved.draws, one->sources.size());
      resolved.interventions.push_back(*std::move(one));
    }
    for (const int64_t head : meant) {
      resolved.heads.push_back(spec.head_ids[static_cast<size_t>(head)]);
    }
    resolved.ablation = std::move(ablation);
    plan.ablations.push_back(std::move(resolved));
  }
  if (absl::Status finished = sources.Finish(); !finished.ok()) return finished;
  plan.segments = CutSegments(lengths, plan.ablations);
  return plan;
}

}  // namespace headwise
