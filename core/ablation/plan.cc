// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headwise {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule, "; was ", was));
}

const char* KindName(InterventionKind kind) {
  switch (kind) {
    case InterventionKind::kZero:
      return "ZERO";
    case InterventionKind::kScale:
      return "SCALE";
    case InterventionKind::kMean:
      return "MEAN";
    case InterventionKind::kResample:
      return "RESAMPLE";
    case InterventionKind::kDonor:
      return "DONOR";
    case InterventionKind::kReplace:
      return "REPLACE";
    case InterventionKind::kUniform:
      return "UNIFORM";
    case InterventionKind::kKnockout:
      return "KNOCKOUT";
  }
  return "?";
}

const char* SweepName(SweepKind sweep) {
  switch (sweep) {
    case SweepKind::kNone:
      return "none";
    case SweepKind::kLeaveOneOut:
      return "LEAVE_ONE_OUT";
    case SweepKind::kKeepOne:
      return "KEEP_ONE";
    case SweepKind::kPairs:
      return "PAIRS";
    case SweepKind::kCumulative:
      return "CUMULATIVE";
    case SweepKind::kPrunePlan:
      return "PRUNE_PLAN";
  }
  return "?";
}

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

absl::StatusOr<float> FindFactor(const Intervention& intervention) {
  switch (intervention.kind) {
    case InterventionKind::kZero:
      return 0.0f;
    case InterventionKind::kScale:
      if (!std::isfinite(intervention.scale)) {
        return Invalid("scale", "must be finite", absl::StrCat(intervention.scale));
      }
      return static_cast<float>(intervention.scale);
    default:
      return absl::UnimplementedError(
          absl::StrCat("kind: ZERO and SCALE are carried out; was ", KindName(intervention.kind)));
  }
}

// True if the intervention selects a query position of the sequence.
bool Selects(const ResolvedIntervention& intervention, int64_t sequence, int64_t length) {
  const std::vector<int64_t>& chosen = intervention.sequences;
  return intervention.token_begin < std::min(intervention.token_end, length) &&
         (chosen.empty() || std::binary_search(chosen.begin(), chosen.end(), sequence));
}

absl::StatusOr<ResolvedIntervention> Resolve(const LayerSpec& spec,
                                             const std::vector<int64_t>& lengths,
                                             const Intervention& intervention) {
  ResolvedIntervention resolved;
  auto heads = FindHeads(spec, intervention);
  if (!heads.ok()) return heads.status();
  resolved.heads = *std::move(heads);
  auto factor = FindFactor(intervention);
  if (!factor.ok()) return factor.status();
  resolved.factor = *factor;
  const int64_t sequences = static_cast<int64_t>(lengths.size());
  const std::set<int64_t> chosen(intervention.sequences.begin(), intervention.sequences.end());
  for (const int64_t sequence : chosen) {
    if (sequence < 0 || sequence >= sequences) {
      return Invalid("sequences", absl::StrCat("must be in [0, ", sequences, ")"),
                     absl::StrCat(sequence));
    }
  }
  resolved.sequences.assign(chosen.begin(), chosen.end());
  resolved.token_begin = intervention.token_begin;
  resolved.token_end =
      intervention.token_end.value_or(*std::max_element(lengths.begin(), lengths.end()));
  for (int64_t s = 0; s < sequences; ++s) {
    if (Selects(resolved, s, lengths[static_cast<size_t>(s)])) return resolved;
  }
  return Invalid(
      "token range", "must select a token of the request",
      absl::StrCat("[", intervention.token_begin, ", ",
                   intervention.token_end ? absl::StrCat(*intervention.token_end) : "end", ")"));
}

// The ablations that the request lists or that its sweep stands for.
absl::StatusOr<std::vector<Ablation>> Expand(const LayerSpec& spec, const AblateRequest& request) {
  if (request.sweep == SweepKind::kNone) return request.ablations;
  if (!request.ablations.empty()) {
    return Invalid("ablations", "must be absent beside a sweep",
                   absl::StrCat(request.ablations.size()));
  }
  if (request.sweep != SweepKind::kLeaveOneOut) {
    return absl::UnimplementedError(
        absl::StrCat("sweep: LEAVE_ONE_OUT is carried out; was ", SweepName(request.sweep)));
  }
  std::vector<Ablation> ablations;
  const bool heads = request.target == SweepTarget::kHeads;
  for (int64_t i = 0; i < (heads ? spec.heads : spec.kv_heads); ++i) {
    Intervention intervention = request.sweep_intervention;
    intervention.heads.clear();
    intervention.groups.clear();
    if (heads) {
      intervention.heads.push_back(spec.head_ids[static_cast<size_t>(i)]);
    } else {
      intervention.groups.push_back(i);
    }
    ablations.push_back({{std::move(intervention)}});
  }
  // By id, whatever the order of the axis.
  if (heads) {
    std::sort(ablations.begin(), ablations.end(), [](const Ablation& a, const Ablation& b) {
      return a.interventions[0].heads[0] < b.interventions[0].heads[0];
    });
  }
  return ablations;
}

std::vector<TokenSegment> CutSegments(const std::vector<int64_t>& lengths,
                                      const std::vector<ResolvedAblation>& ablations) {
  std::vector<TokenSegment> segments;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t sequence = static_cast<int64_t>(s);
    std::set<int64_t> cuts = {0, lengths[s]};
    for (const ResolvedAblation& ablation : ablations) {
      for (const ResolvedIntervention& intervention : ablation.interventions) {
        if (!Selects(intervention, sequence, lengths[s])) continue;
        cuts.insert(intervention.token_begin);
        cuts.insert(std::min(intervention.token_end, lengths[s]));
      }
    }
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
      segments.push_back({sequence, *cut, *std::next(cut)});
    }
  }
  return segments;
}

}  // namespace

void AblationPlan::Factors(size_t a, const TokenSegment& segment,
                           std::vector<float>* factors) const {
  std::fill(factors->begin(), factors->end(), 1.0f);
  for (const ResolvedIntervention& i : ablations[a].interventions) {
    const bool acts = Selects(i, segment.sequence, segment.end) && i.token_begin <= segment.begin &&
                      segment.end <= i.token_end;
    if (!acts) continue;
    for (const int64_t head : i.heads) (*factors)[static_cast<size_t>(head)] = i.factor;
  }
}

absl::StatusOr<AblationPlan> PlanAblations(const LayerSpec& spec,
                                           const std::vector<int64_t>& lengths,
                                           const AblateRequest& request, int64_t max_ablations) {
  auto ablations = Expand(spec, request);
  if (!ablations.ok()) return ablations.status();
  if (static_cast<int64_t>(ablations->size()) > max_ablations) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ablations: at most ", max_ablations, " a request; was ", ablations->size()));
  }
  AblationPlan plan;
  for (Ablation& ablation : *ablations) {
    ResolvedAblation resolved;
    std::set<int64_t> meant;
    for (const Intervention& intervention : ablation.interventions) {
      if (lengths.empty()) {
        return Invalid("token range", "must select a token of the request", "no sequences");
      }
      auto one = Resolve(spec, lengths, intervention);
      if (!one.ok()) return one.status();
      meant.insert(one->heads.begin(), one->heads.end());
      resolved.interventions.push_back(*std::move(one));
    }
    for (const int64_t head : meant) {
      resolved.heads.push_back(spec.head_ids[static_cast<size_t>(head)]);
    }
    resolved.ablation = std::move(ablation);
    plan.ablations.push_back(std::move(resolved));
  }
  plan.segments = CutSegments(lengths, plan.ablations);
  return plan;
}

}  // namespace headwise
