// SPDX-License-Identifier: Apache-2.0
#include "tests/support/agreement.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

constexpr double kEpsilon = 0x1p-24;

// Rounding of a sum of `terms` products, relative to the size of its result.
double SumError(int64_t terms) { return kEpsilon * (4.0 + std::sqrt(static_cast<double>(terms))); }

// Largest Euclidean norm of a row of `matrix` [., width], or of a stretch of it.
template <typename T>
double LargestNorm(const std::vector<T>& matrix, int64_t width, int64_t begin, int64_t end) {
  double largest = 0.0;
  for (size_t row = 0; row < matrix.size(); row += static_cast<size_t>(width)) {
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      const double value = static_cast<double>(matrix[row + static_cast<size_t>(i)]);
      if (std::isfinite(value)) sum += value * value;
    }
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

// Largest |q| |k| times the scale, over the heads: what a score's error is relative to.
double LargestScoreScale(const LayerSpec& spec, const std::vector<double>& q,
                         const std::vector<double>& k) {
  double largest = 0.0;
  int64_t q_begin = 0;
  for (int64_t head = 0; head < spec.heads; ++head) {
    const int64_t width = spec.dk[static_cast<size_t>(head)];
    int64_t k_begin = 0;
    const int64_t group = spec.query_to_kv[static_cast<size_t>(head)];
    for (int64_t before = 0; before < group; ++before) k_begin += spec.kv_dk(before);
    largest = std::max(largest, std::abs(spec.head_scale(head)) *
                                    LargestNorm(q, spec.q_width(), q_begin, q_begin + width) *
                                    LargestNorm(k, spec.k_width(), k_begin, k_begin + width));
    q_begin += width;
  }
  return largest;
}

}  // namespace

std::map<std::string, double> Tolerances(
    const TestLayer& layer, const std::map<std::string, std::vector<double>>& reference,
    DType dtype) {
  const LayerSpec& spec = layer.spec;
  if (reference.empty()) return {};
  const auto largest = [&reference](const char* name) {
    return LargestMagnitude(reference.at(name));
  };
  const int64_t keys = static_cast<int64_t>(reference.at("k").size()) / spec.k_width();
  const int64_t widest = *std::max_element(spec.dk.begin(), spec.dk.end());
  // Both operands of a projection, and what attention keeps of its results.
  const double operands = dtype == DType::kF32 ? 0.0 : dtype == DType::kBF16 ? 0x1p-8 : 1.0 / 64.0;
  const double kept = dtype == DType::kF32 ? 0.0 : 0x1p-8;
  // A norm divides by what may be small against the largest row; a clip hides how large it was.
  const double norm = spec.qk_norm.has_value() ? 8.0 : spec.clip.has_value() ? 4.0 : 1.0;
  const double in = norm * (SumError(std::max(spec.d_model, spec.d_memory)) + operands + kept);
  const double v = largest("v");
  double largest_score = 0.0;
  for (const auto& [name, values] : reference) {
    if (name.rfind("scores.", 0) == 0) {
      largest_score = std::max(largest_score, LargestMagnitude(values));
    }
  }
  const double score =
      (2.0 * in + SumError(widest)) * LargestScoreScale(spec, reference.at("q"), reference.at("k"));
  const double z = (2.0 * score + in + kept + SumError(keys)) * v;
  const double row = LargestNorm(layer.matrices.wo, spec.z_width(), 0, spec.z_width());
  const double y = 2.0 * row * (z + (SumError(spec.z_width()) + operands) * largest("z"));
  return {{"q", in * largest("q")},
          {"k", in * largest("k")},
          {"v", in * v},
          // A bias of many units has an epsilon of its own.
          {"scores", score + 2.0 * kEpsilon * largest_score},
          {"p", score + kept + 8.0 * kEpsilon + 2.0 * kEpsilon * largest_score},
          {"z", z},
          {"y", y + kEpsilon * largest("y")},
          {"contributions", y}};
}

::testing::AssertionResult AgreesWithReference(Engine* engine, const TestLayer& layer,
                                               const TestInput& input, DType dtype) {
  Load(engine, "layer", layer, dtype);
  const absl::StatusOr<ForwardResult> result =
      ForwardNow(engine, MakeForward("layer", input, kAllOutputs));
  if (!result.ok()) return ::testing::AssertionFailure() << result.status();
  const std::map<std::string, std::vector<double>> expected = ReferenceByName(layer, input);
  const std::map<std::string, double> tolerances = Tolerances(layer, expected, dtype);
  if (result->outputs.size() != expected.size() && !input.get().x.shape.empty() &&
      input.get().x.elements() > 0) {
    return ::testing::AssertionFailure()
           << result->outputs.size() << " outputs instead of " << expected.size();
  }
  for (const NamedOutput& output : result->outputs) {
    const auto found = expected.find(output.name);
    if (found == expected.end()) continue;  // an empty tensor of an empty request
    const std::string kind = output.name.substr(0, output.name.find('.'));
    const absl::Span<const float> actual(output.floats(), output.data.size() / sizeof(float));
    const ::testing::AssertionResult near =
        AllNear(actual, found->second, tolerances.at(kind), output.shape);
    if (!near) return ::testing::AssertionFailure() << output.name << ": " << near.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace headwise
