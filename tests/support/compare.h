// SPDX-License-Identifier: Apache-2.0
// Comparisons of whole tensors that name the worst element.
#ifndef HEADWISE_TESTS_SUPPORT_COMPARE_H_
#define HEADWISE_TESTS_SUPPORT_COMPARE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace headwise {

std::vector<double> Widened(absl::Span<const float> values);

// Every |actual - expected| <= tolerance, NaN only where NaN is expected, the same infinities. Says
// the worst element with its coordinates in `shape`.
::testing::AssertionResult AllNear(absl::Span<const double> actual,
                                   absl::Span<const double> expected, double tolerance,
                                   const std::vector<int64_t>& shape = {});
::testing::AssertionResult AllNear(absl::Span<const float> actual,
                                   absl::Span<const double> expected, double tolerance,
                                   const std::vector<int64_t>& shape = {});

// The same bytes; -0 differs from 0, and a NaN equals the same NaN. Says the first difference.
::testing::AssertionResult SameBits(absl::Span<const float> actual,
                                    absl::Span<const float> expected,
                                    const std::vector<int64_t>& shape = {});

// Largest finite |value|; 0 for none.
double LargestMagnitude(absl::Span<const double> values);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_COMPARE_H_
