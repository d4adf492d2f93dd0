// SPDX-License-Identifier: Apache-2.0
// Products with weights: x W of q, k and v, and the same in int8.
#include <algorithm>
#include <cmath>

#include "core/reference/stages.h"

namespace headwise {
namespace {

constexpr int64_t kTokensAtOnce = 4;  // a row of weights is read once for so many

struct Matrix {
  std::vector<double> values;  // [in, out]
  std::vector<double> scale;   // [out]; int8 only
};

Matrix Transposed(const std::vector<float>& weight, int64_t out_width) {
  Matrix matrix;
  const int64_t in_width = static_cast<int64_t>(weight.size()) / out_width;
  matrix.values.resize(weight.size());
  for (int64_t o = 0; o < out_width; ++o) {
    for (int64_t i = 0; i < in_width; ++i) {
      matrix.values[Index(i * out_width + o)] =
          static_cast<double>(weight[Index(o * in_width + i)]);
    }
  }
  return matrix;
}

// in [n, I] times matrix [I, O] and, where `squares` isn't null, the sums of squared terms.
void MultiplyRows(const double* in, int64_t n, int64_t in_width, const double* matrix,
                  int64_t out_width, double* out, double* squares) {
  for (int64_t first = 0; first < n; first += kTokensAtOnce) {
    const int64_t end = std::min(n, first + kTokensAtOnce);
    for (int64_t i = 0; i < in_width; ++i) {
      const double* w = matrix + i * out_width;
      for (int64_t t = first; t < end; ++t) {
        const double x = in[t * in_width + i];
        double* to = out + t * out_width;
        for (int64_t o = 0; o < out_width; ++o) to[o] += x * w[o];
        if (squares == nullptr) continue;
        double* square = squares + t * out_width;
        for (int64_t o = 0; o < out_width; ++o) square[o] += (x * w[o]) * (x * w[o]);
      }
    }
  }
}

float Largest(const double* values, int64_t count, int64_t step = 1) {
  double largest = 0.0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i * step]));
  return static_cast<float>(largest);
}

float ScaleOf(float largest) { return largest / 127.0f; }

double Quantised(double value, float scale) {
  if (scale == 0.0f) return 0.0;
  const float steps = std::nearbyintf(static_cast<float>(value) / scale);
  return static_cast<double>(std::clamp(steps, -127.0f, 127.0f));
}

// Turns the matrix into s8 steps, with what a step of each output channel is worth.
void QuantiseWeights(WeightScale way, int64_t in_width, int64_t out_width, Matrix* matrix) {
  std::vector<double>& values = matrix->values;
  matrix->scale.assign(Index(out_width), 1.0);
  if (way == WeightScale::kNone) return;
  std::vector<float> by_input(Index(in_width));
  for (int64_t i = 0; i < in_width; ++i) {
    by_input[Index(i)] = ScaleOf(Largest(values.data() + i * out_width, out_width));
  }
  const float whole = ScaleOf(Largest(values.data(), in_width * out_width));
  for (int64_t o = 0; o < out_width; ++o) {
    float scale = ScaleOf(Largest(values.data() + o, in_width, out_width));
    if (way == WeightScale::kTensor) scale = whole;
    for (int64_t i = 0; i < in_width; ++i) {
      double& value = values[Index(i * out_width + o)];
      value = Quantised(value, way == WeightScale::kWrongAxis ? by_input[Index(i)] : scale);
    }
    if (way == WeightScale::kWrongAxis) scale = by_input[Index(std::min(o, in_width - 1))];
    matrix->scale[Index(o)] = static_cast<double>(scale);
  }
}

double Wrapped16(double sum) {
  const auto bits = static_cast<uint16_t>(static_cast<int64_t>(sum));
  return static_cast<double>(static_cast<int16_t>(bits));
}

}  // namespace

double StagedLayer::SumBound(double count, double root, double value) const {
  return kDeviations * numbers_->sum * std::sqrt(count) * (root + std::fabs(value));
}

double StagedLayer::StoreBound(double value, double times) const {
  return times * numbers_->store * std::fabs(value) + numbers_->tiny;
}

Bounded StagedLayer::MultiplyInt8(const std::vector<double>& in, const std::vector<float>& weight,
                                  int64_t out_width) const {
  const int64_t in_width = static_cast<int64_t>(weight.size()) / out_width;
  const int64_t n = static_cast<int64_t>(in.size()) / in_width;
  Matrix matrix = Transposed(weight, out_width);
  QuantiseWeights(plan_.weight_scale, in_width, out_width, &matrix);
  std::vector<double> steps = in;
  std::vector<double> scales(Index(n), 1.0);
  const float batch = ScaleOf(Largest(in.data(), n * in_width));
  for (int64_t t = 0; t < n && plan_.activation_scale != ActivationScale::kNone; ++t) {
    double* row = steps.data() + t * in_width;
    const bool by_row = plan_.activation_scale == ActivationScale::kRow;
    const float scale = by_row ? ScaleOf(Largest(row, in_width)) : batch;
    for (int64_t i = 0; i < in_width; ++i) row[i] = Quantised(row[i], scale);
    scales[Index(t)] = static_cast<double>(scale);
  }
  Bounded out;
  out.value.assign(Index(n * out_width), 0.0);
  MultiplyRows(steps.data(), n, in_width, matrix.values.data(), out_width, out.value.data(),
               nullptr);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t o = 0; o < out_width; ++o) {
      double& value = out.value[Index(t * out_width + o)];
      if (plan_.wrap16) value = Wrapped16(value);
      value *= scales[Index(t)] * matrix.scale[Index(o)];
    }
  }
  if (bounded()) {
    for (const double value : out.value) out.bound.push_back(StoreBound(value, 4.0));
  }
  return out;
}

Bounded StagedLayer::Multiply(const std::vector<double>& in, const std::vector<int64_t>& rows,
                              const std::vector<float>& weight, int64_t out_width) const {
  if (out_width == 0) return {};
  const int64_t in_width = static_cast<int64_t>(weight.size()) / out_width;
  std::vector<double> picked;
  for (const int64_t row : rows) {
    picked.insert(picked.end(), in.begin() + row * in_width, in.begin() + (row + 1) * in_width);
  }
  const std::vector<double>& from = rows.empty() ? in : picked;
  if (plan_.weight_scale != WeightScale::kNone ||
      plan_.activation_scale != ActivationScale::kNone) {
    return MultiplyInt8(from, weight, out_width);
  }
  const int64_t n = static_cast<int64_t>(from.size()) / in_width;
  Matrix matrix = Transposed(weight, out_width);
  Bounded out;
  out.value.assign(Index(n * out_width), 0.0);
  if (bounded()) out.bound.assign(out.value.size(), 0.0);
  MultiplyRows(from.data(), n, in_width, matrix.values.data(), out_width, out.value.data(),
               bounded() ? out.bound.data() : nullptr);
  for (size_t e = 0; e < out.bound.size(); ++e) {
    const double root = std::sqrt(out.bound[e]);
    out.bound[e] = kDeviations * numbers_->input * std::sqrt(2.0) * root +
                   SumBound(static_cast<double>(in_width), root, out.value[e]) +
                   StoreBound(out.value[e]);
  }
  if (!bounded() || !numbers_->int8_projections) return out;
  // Half a step of x's row in each weight, half a step of the channel in each x; the deviation of a
  // rounding to steps is 0.29 of a step.
  std::vector<double> x_norm(Index(n), 0.0), x_step(Index(n), 0.0);
  for (int64_t t = 0; t < n; ++t) {
    const double* x = from.data() + t * in_width;
    for (int64_t i = 0; i < in_width; ++i) x_norm[Index(t)] += x[i] * x[i];
    x_step[Index(t)] = static_cast<double>(ScaleOf(Largest(x, in_width)));
  }
  for (int64_t o = 0; o < out_width; ++o) {
    double w_norm = 0.0;
    for (int64_t i = 0; i < in_width; ++i) {
      w_norm += std::pow(matrix.values[Index(i * out_width + o)], 2);
    }
    const double step =
        static_cast<double>(ScaleOf(Largest(matrix.values.data() + o, in_width, out_width)));
    for (int64_t t = 0; t < n; ++t) {
      out.bound[Index(t * out_width + o)] +=
          2.0 *
          std::sqrt(x_step[Index(t)] * x_step[Index(t)] * w_norm + step * step * x_norm[Index(t)]);
    }
  }
  return out;
}

Projections StagedLayer::Project(const ReferenceInput& input,
                                 const std::vector<int64_t>& rows) const {
  return {Multiply(input.x, rows, matrices_->wq, q_begin_.back()),
          Multiply(input.memory, {}, matrices_->wk, k_begin_.back()),
          Multiply(input.memory, {}, matrices_->wv, v_begin_.back()),
          Multiply(input.x, rows, matrices_->wq_statistic, spec_.q_statistic_rows()),
          Multiply(input.memory, {}, matrices_->wk_statistic, spec_.k_statistic_rows())};
}

}  // namespace headwise
