// SPDX-License-Identifier: Apache-2.0
#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headwise {
namespace {

// "[1, 2, 0] of [2, 3, 4]", or the flat index without a shape.
std::string Coordinates(size_t index, const std::vector<int64_t>& shape) {
  if (shape.empty()) return absl::StrCat("[", index, "]");
  std::vector<int64_t> place(shape.size());
  auto rest = static_cast<int64_t>(index);
  for (size_t axis = shape.size(); axis-- > 0;) {
    place[axis] = rest % shape[axis];
    rest /= shape[axis];
  }
  return absl::StrCat("[", absl::StrJoin(place, ", "), "] of [", absl::StrJoin(shape, ", "), "]");
}

// How far `actual` is from `expected`: infinite where one is not finite and they differ.
double Distance(double actual, double expected) {
  if (std::isnan(actual) && std::isnan(expected)) return 0.0;
  if (actual == expected) return 0.0;
  const double distance = std::abs(actual - expected);
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

}  // namespace

std::vector<double> Widened(absl::Span<const float> values) {
  return std::vector<double>(values.begin(), values.end());
}

::testing::AssertionResult AllNear(absl::Span<const double> actual,
                                   absl::Span<const double> expected, double tolerance,
                                   const std::vector<int64_t>& shape) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << actual.size() << " elements instead of " << expected.size();
  }
  size_t worst = 0;
  double distance = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double here = Distance(actual[i], expected[i]);
    if (here <= distance) continue;
    distance = here;
    worst = i;
  }
  if (distance <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "worst element " << Coordinates(worst, shape) << ": " << actual[worst] << " instead of "
         << expected[worst] << ", off by " << distance << " where " << tolerance << " is allowed";
}

::testing::AssertionResult AllNear(absl::Span<const float> actual,
                                   absl::Span<const double> expected, double tolerance,
                                   const std::vector<int64_t>& shape) {
  return AllNear(Widened(actual), expected, tolerance, shape);
}

::testing::AssertionResult SameBits(absl::Span<const float> actual,
                                    absl::Span<const float> expected,
                                    const std::vector<int64_t>& shape) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << actual.size() << " elements instead of " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(float)) == 0) continue;
    return ::testing::AssertionFailure() << "first difference at " << Coordinates(i, shape) << ": "
                                         << actual[i] << " instead of " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

double LargestMagnitude(absl::Span<const double> values) {
  double largest = 0.0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace headwise
