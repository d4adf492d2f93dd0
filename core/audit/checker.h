// SPDX-License-Identifier: Apache-2.0
// One audit of a served layer under way.
#ifndef HEADWISE_CORE_AUDIT_CHECKER_H_
#define HEADWISE_CORE_AUDIT_CHECKER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/audit/bounds.h"
#include "core/audit/checks.h"
#include "core/reference/staged_layer.h"

namespace headwise {

// Steps of CheckServedLayer, each of which adds its checks. Prepare first. Not thread-safe.
class Checker {
 public:
  // All must outlive it.
  Checker(const LayerInfo& info, const LayerParts& parts, const AttentionInput& input,
          AuditTarget* target)
      : info_(info), parts_(parts), input_(input), target_(target) {}

  absl::Status Prepare();
  absl::Status Projections();
  void Stages();
  absl::Status KernelsAndDTypes();
  void Shapes();
  void Axes();
  // checks_heads.cc
  absl::Status Permutations();
  absl::Status Ablations();
  absl::Status Batch();
  absl::Status Masks();

  std::vector<AuditCheck> Take() { return std::move(checks_); }

 private:
  void Add(std::string id, std::string compared, const Deviation& worst, std::string source,
           double share = kRightShare);
  absl::Status Fused();
  // Two computations of y.
  Deviation Between(const std::vector<double>& a, const std::vector<double>& b) const;
  std::vector<double> BiasRows() const;
  absl::Status WoAlone();

  const LayerInfo& info_;
  const LayerParts& parts_;
  const AttentionInput& input_;
  AuditTarget* const target_;
  ReferenceInput reference_input_;
  Numbers numbers_;
  std::shared_ptr<const LayerMatrices> matrices_;
  StageTensors right_;
  AuditTarget::Outputs served_;  // every stage
  AuditTarget::Outputs plain_;   // y alone: what else is asked for may change its last bits
  std::vector<double> y_;        // served
  std::vector<AuditCheck> checks_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_CHECKER_H_
