// SPDX-License-Identifier: Apache-2.0
// An input on which explanations that agreed give different numbers.
#ifndef HEADWISE_CORE_AUDIT_DISTINGUISH_H_
#define HEADWISE_CORE_AUDIT_DISTINGUISH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/audit/search.h"
#include "core/base/dtype.h"

namespace headwise {

struct DistinguishingInput {
  bool found = false;                   // some explanations come apart
  std::vector<float> x;                 // [N, D]
  std::vector<int64_t> lengths;         // [B]
  std::vector<float> memory;            // [M, d_memory]; empty: none
  std::vector<int64_t> memory_lengths;  // [B] with a memory
  std::string note;                     // which explanations it tells apart
};

// Tries seeded random inputs, longer than the caller's where no mask, position or memory ties them
// to its lengths; takes the one that tells most pairs of `explanations` apart, by more than four
// times the bounds of `stated`. Pure; thread-safe.
DistinguishingInput Distinguish(const AuditCase& right,
                                const std::vector<AuditExplanation>& explanations, DType stated);

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_DISTINGUISH_H_
