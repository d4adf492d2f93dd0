// SPDX-License-Identifier: Apache-2.0
// What numbers of a dtype may lose, and comparisons against bounds made of that.
#ifndef HEADWISE_CORE_AUDIT_BOUNDS_H_
#define HEADWISE_CORE_AUDIT_BOUNDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/dtype.h"
#include "core/reference/stage_plan.h"

namespace headwise {

// Of code that computes in `dtype` throughout, right code: F32 sums and stores in f32; BF16 rounds
// x, weights and every stage to bf16 and sums in f32; F16 does the same and may sum in f16 too; I8
// is a layer with int8 projections, whose attention is in bf16.
Numbers NumbersOf(DType dtype);

// F32 numbers whose sums are kept in bf16.
Numbers Bf16SumNumbers(DType stated);

// In words, for people: where a bound comes from.
std::string BoundSource(DType dtype);

// Roundings seldom come near their bound: over a tensor, the root of the mean of (error / bound)^2
// was at most 0.13 of right code in f32, bf16 and f16. What comes nearer than these on the whole is
// something else: in a right tensor, in one that an explanation gives, and in y of sums kept in
// bf16, whose bounds are wider than their errors by far (0.035 at most).
inline constexpr double kRightShare = 0.4;
inline constexpr double kExplainedShare = 0.25;
inline constexpr double kBf16SumsShare = 0.06;

// Some elements against where they may be: the one that is furthest out, and all on the whole.
struct Deviation {
  double error = 0.0;  // |actual - expected|
  double bound = 0.0;
  double ratio = 0.0;                 // error / bound, infinite for a NaN on one side only
  double squares = 0.0, count = 0.0;  // sum of ratio^2 over the elements

  // Every element within its bound and, on the whole, within `share` of them.
  bool agrees(double share = kRightShare) const;
  void Take(const Deviation& other);
};

// One element; the same NaN or infinity on both sides is no error.
Deviation CompareElement(double actual, double expected, double bound);
Deviation CompareAll(absl::Span<const double> actual, absl::Span<const double> expected,
                     absl::Span<const double> bound);

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_BOUNDS_H_
