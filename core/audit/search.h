// SPDX-License-Identifier: Apache-2.0
// Which mistakes reproduce a caller's numbers.
#ifndef HEADWISE_CORE_AUDIT_SEARCH_H_
#define HEADWISE_CORE_AUDIT_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/audit/evaluate.h"
#include "core/audit/mistakes.h"
#include "core/base/dtype.h"

namespace headwise {

enum class AuditVerdict : uint8_t { kRight, kExplained, kUnexplained };
const char* AuditVerdictName(AuditVerdict verdict);  // "right", "explained", "unexplained"

struct AppliedMistake {
  const Mistake* mistake = nullptr;
  int64_t form = 0;  // unused by mistakes that are found in their own way
};

// Mistakes that together give the caller's numbers.
struct AuditExplanation {
  std::vector<std::string> mistakes;        // ids
  Deviation deviation;                      // of y, what is furthest from its bound
  AuditStage first_stage = AuditStage::kY;  // where they first part from the right numbers
  std::string text, fix;
  AuditCase computation;
  std::vector<AppliedMistake> applied;  // what makes `computation` of the right one
};

struct SearchOptions {
  DType stated = DType::kF32;  // what the caller computed in: F32, BF16 or F16
  bool pairs = true;           // two mistakes at once, where one alone explains nothing
  // Told how far it is, by stage ("mistakes", "pairs"). May be empty.
  std::function<void(absl::string_view stage, int64_t done, int64_t total)> progress;
  // Asked between computations; where it says true the result is not complete. May be empty.
  std::function<bool()> stop;
};

struct SearchResult {
  AuditVerdict verdict = AuditVerdict::kRight;
  std::vector<StageDeviation> stages;          // those given
  std::optional<AuditStage> first_difference;  // of those given; absent where all agree
  std::vector<AuditExplanation> explanations;  // all that fit equally
};

// `right` as RightCase made it, gates and ablated heads set; `theirs` has its shapes. Pure;
// thread-safe.
SearchResult FindMistakes(const AuditCase& right, const TheirTensors& theirs,
                          const SearchOptions& options);

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_SEARCH_H_
