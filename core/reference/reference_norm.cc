// SPDX-License-Identifier: Apache-2.0
#include "core/reference/reference_norm.h"

#include <cmath>

namespace headwise {

void NormaliseRow(const ReferenceNorm& norm, int64_t width, double store, double* x,
                  double* bound) {
  const double count = static_cast<double>(width);
  double mean = 0.0;
  if (norm.kind == NormKind::kLayerNorm) {
    for (int64_t i = 0; i < width; ++i) mean += x[i] / count;
  }
  double square = 0.0, errors = 0.0, moved = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    square += (x[i] - mean) * (x[i] - mean) / count;
    if (bound == nullptr) continue;
    errors += bound[i] * bound[i];
    moved += (x[i] - mean) * (x[i] - mean) * bound[i] * bound[i];
  }
  const double deviation = std::sqrt(square + norm.epsilon);
  for (int64_t i = 0; i < width; ++i) {
    double w = 1.0;
    if (norm.weight != nullptr) {
      w = static_cast<double>(norm.weight[i]) + (norm.kind == NormKind::kRmsPlusOne ? 1.0 : 0.0);
    }
    x[i] = (x[i] - mean) / deviation * w;
    if (bound != nullptr) {
      const double of_mean = norm.kind == NormKind::kLayerNorm ? std::sqrt(errors) / count : 0.0;
      const double of_deviation = std::sqrt(moved) / (count * deviation * deviation);
      bound[i] = std::fabs(w) / deviation * (bound[i] + of_mean + store * std::fabs(mean)) +
                 std::fabs(x[i]) * (of_deviation + 6.0 * store);
    }
    if (norm.bias == nullptr) continue;
    x[i] += static_cast<double>(norm.bias[i]);
    if (bound != nullptr) bound[i] += 2.0 * store * std::fabs(static_cast<double>(norm.bias[i]));
  }
}

void ApplyPreNorm(const LayerSpec& spec, const LayerVectors& vectors, std::vector<double>* x) {
  const auto or_null = [](const std::vector<float>& values) {
    return values.empty() ? nullptr : values.data();
  };
  const ReferenceNorm norm{spec.pre_norm->kind, spec.pre_norm->epsilon, or_null(vectors.pre_norm),
                           or_null(vectors.pre_norm_bias)};
  for (size_t at = 0; at < x->size(); at += static_cast<size_t>(spec.d_model)) {
    NormaliseRow(norm, spec.d_model, 0.0, x->data() + at, nullptr);
  }
}

}  // namespace headwise
