// SPDX-License-Identifier: Apache-2.0
// What replaces z_r where it is no multiple of it: sources, made from interventions.
#ifndef HEADWISE_CORE_ABLATION_SOURCE_H_
#define HEADWISE_CORE_ABLATION_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ablation/plan.h"

namespace headwise {

// Adds sources to a plan; interventions with the same settings share theirs, so that a sweep needs
// one. Not thread-safe.
class SourceMaker {
 public:
  // All must outlive it.
  SourceMaker(const LayerSpec& spec, const std::vector<int64_t>& lengths, AblationPlan* plan)
      : spec_(spec), lengths_(lengths), plan_(*plan) {}

  // Fills `resolved->sources`, one a draw, for its heads and selection. INVALID_ARGUMENT.
  absl::Status Add(const Intervention& intervention, ResolvedIntervention* resolved);

  // After the last: places the heads in the sources' columns and lists the variants.
  // INVALID_ARGUMENT for a tensor that doesn't fit its heads.
  absl::Status Finish();

 private:
  absl::Status CheckSettings(const Intervention& intervention) const;
  absl::Status ReadEdges(const Intervention& intervention, ReplacementSource* source) const;
  absl::Status ReadTensor(size_t source);
  bool OfAllHeads(const Intervention& intervention) const;
  size_t FindOrAdd(const Intervention& intervention, const ResolvedIntervention& resolved,
                   int64_t draw, bool* added);

  const LayerSpec& spec_;
  const std::vector<int64_t>& lengths_;
  AblationPlan& plan_;
  // What each source was made from, for telling equal ones.
  struct Origin {
    Intervention intervention;
    std::vector<int64_t> heads;  // of the intervention
    int64_t draw = 0;
  };
  std::vector<Origin> origins_;
};

// For each selected sequence another one that is as long as what is replaced: each at most once
// where that can be, else evenly drawn; -1 for sequences that aren't selected. INVALID_ARGUMENT,
// naming the sequence, where there is none.
absl::StatusOr<std::vector<int64_t>> DrawPartners(const std::vector<int64_t>& lengths,
                                                  const TokenSelection& selection, uint32_t seed,
                                                  int64_t draw);

}  // namespace headwise

#endif  // HEADWISE_CORE_ABLATION_SOURCE_H_
