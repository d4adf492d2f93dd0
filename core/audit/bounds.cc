// SPDX-License-Identifier: Apache-2.0
#include "core/audit/bounds.h"

#include <cmath>
#include <limits>

#include "absl/log/check.h"

namespace headwise {
namespace {

constexpr double kF32 = 0x1p-24;
constexpr double kBf16 = 0x1p-8;
constexpr double kF16 = 0x1p-11;
constexpr double kTinyF16 = 0x1p-25;  // half of the smallest step of f16
constexpr double kTinyF32 = 0x1p-126;

}  // namespace

Numbers NumbersOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {.input = kBf16, .store = kBf16, .sum = kF32, .tiny = kTinyF32};
    case DType::kF16:
      return {.input = kF16, .store = kF16, .sum = kF16, .tiny = kTinyF16};
    case DType::kI8:
      return {
          .input = 0.0, .store = kBf16, .sum = kF32, .tiny = kTinyF32, .int8_projections = true};
    default:
      return {.input = 0.0, .store = kF32, .sum = kF32, .tiny = kTinyF32};
  }
}

Numbers Bf16SumNumbers(DType stated) {
  Numbers numbers = NumbersOf(stated);
  numbers.sum = kBf16;
  return numbers;
}

std::string BoundSource(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "7 deviations of bf16 roundings (2^-8) of x, weights and each stage, f32 sums; "
             "carried "
             "on by sum |q||k| and sum |p||v|";
    case DType::kF16:
      return "7 deviations of f16 roundings (2^-11) of x, weights, each stage and sums; carried on "
             "by sum |q||k| and sum |p||v|";
    case DType::kI8:
      return "7 deviations of int8 steps (a scale a row and a channel) and of bf16 roundings in "
             "attention; carried on by sum |q||k| and sum |p||v|";
    default:
      return "7 deviations of f32 roundings (2^-24) of each stage and its sums, root of the "
             "length; "
             "carried on by sum |q||k| and sum |p||v|";
  }
}

bool Deviation::agrees(double share) const {
  if (!(ratio <= 1.0)) return false;
  // A mean of few says little.
  return count < 1.0 || std::sqrt(squares / count) <= share + 4.0 / count;
}

void Deviation::Take(const Deviation& other) {
  if (count == 0.0 || !(other.ratio <= ratio)) {
    error = other.error;
    bound = other.bound;
    ratio = other.ratio;
  }
  squares += other.squares;
  count += other.count;
}

Deviation CompareElement(double actual, double expected, double bound) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (std::isnan(actual) && std::isnan(expected)) return {0.0, 0.0, 0.0, 0.0, 1.0};
  if (actual == expected) return {0.0, bound, 0.0, 0.0, 1.0};
  const double error = std::fabs(actual - expected);
  if (!std::isfinite(error) || !std::isfinite(bound) || bound <= 0.0) {
    return {error, bound, kInfinite, kInfinite, 1.0};
  }
  const double ratio = error / bound;
  return {error, bound, ratio, ratio * ratio, 1.0};
}

Deviation CompareAll(absl::Span<const double> actual, absl::Span<const double> expected,
                     absl::Span<const double> bound) {
  CHECK_EQ(actual.size(), expected.size());
  CHECK_EQ(actual.size(), bound.size());
  Deviation worst;
  for (size_t e = 0; e < actual.size(); ++e) {
    worst.Take(CompareElement(actual[e], expected[e], bound[e]));
  }
  return worst;
}

}  // namespace headwise
