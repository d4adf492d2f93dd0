// SPDX-License-Identifier: Apache-2.0
// Runs one computation after the other against a caller's tensors, as little of each as decides.
#ifndef HEADWISE_CORE_AUDIT_EVALUATE_H_
#define HEADWISE_CORE_AUDIT_EVALUATE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/audit/bounds.h"
#include "core/audit/mistakes.h"
#include "core/base/dtype.h"
#include "core/reference/staged_layer.h"

namespace headwise {

// A caller's tensors, packed as StageTensors are; what is empty wasn't given. y always is.
struct TheirTensors {
  std::vector<double> q, k, v;
  std::vector<std::vector<double>> scores, p;  // [B]
  std::vector<double> z, y;
};

// The stages in their order.
enum class AuditStage : uint8_t { kQ, kK, kV, kScores, kP, kZ, kY };
inline constexpr int kAuditStages = 7;
const char* AuditStageName(AuditStage stage);

struct StageDeviation {
  AuditStage stage = AuditStage::kY;
  Deviation deviation;
};

// Not thread-safe.
class Evaluator {
 public:
  // `theirs` has the shapes of `right` and must outlive it.
  Evaluator(AuditCase right, const TheirTensors& theirs, DType stated);

  const AuditCase& right() const { return right_; }
  const StageTensors& right_tensors() const { return right_tensors_; }
  const TheirTensors& theirs() const { return theirs_; }
  DType stated() const { return stated_; }

  // Each given stage against the right one, in the best of the forms that rows without a key take.
  const std::vector<StageDeviation>& stages() const { return stages_; }

  // The case if all given stages agree with it: its worst deviation of y.
  std::optional<Deviation> Try(const AuditCase& c);

  // As Try, where `c` keeps its numbers in too few bits: roundings fall to the other side here and
  // there, so most of what separates it from `c` in float must be explained, not every element.
  std::optional<Deviation> TryNumbers(const AuditCase& c);

  // Whether sums kept in bf16 explain what no exact computation does: all given stages within that
  // bound, and most elements of y beyond the stated one.
  std::optional<Deviation> TryBf16Sums();

  // Whether the case's y is the right one within a hundredth of the bounds.
  bool HasNoEffect(const AuditCase& c);

  // All stages of the case, no bounds; z for all rows.
  StageTensors Tensors(const AuditCase& c);

  // Stage where the case first differs from the right computation by more than the bounds.
  AuditStage FirstStage(const AuditCase& c);

 private:
  StageTensors Run(const AuditCase& c, const std::optional<Numbers>& numbers,
                   const std::vector<int64_t>& rows);
  const Projections& Project(const AuditCase& c, const std::optional<Numbers>& numbers);
  std::vector<StageDeviation> Compare(const StageTensors& tensors) const;
  Deviation CompareY(const StageTensors& tensors) const;
  bool MayAgree(const StageTensors& sample) const;
  struct RoundingEffect;
  RoundingEffect EffectOnY(const StageTensors& ours, const StageTensors& exact) const;
  std::optional<Deviation> TryForm(const AuditCase& c);
  // The forms that rows without a key take in `c`.
  std::vector<EmptyRow> FormsOf(const AuditCase& c) const;
  void ChooseSample();

  const AuditCase right_;
  const TheirTensors& theirs_;
  const DType stated_;
  const Numbers numbers_;
  // Products by their key, the latest first.
  std::list<std::pair<std::string, Projections>> projections_;
  StageTensors right_tensors_;
  std::vector<StageDeviation> stages_;
  std::vector<int64_t> furthest_, sample_;  // rows that are looked at first: one, then some
  bool right_has_empty_rows_ = false;
  double largest_y_ = 0.0, largest_bound_ = 0.0;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_EVALUATE_H_
