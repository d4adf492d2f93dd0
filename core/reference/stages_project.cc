// SPDX-License-Identifier: Apache-2.0
// Products with weights: x W of q, k and v, and the same in int8.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/reference/stages.h"

namespace headwise {
namespace {

constexpr int64_t kOutputsAtOnce = 16;  // their sums stay in registers

// s8 steps of a weight [out, in], and what a step of each output channel is worth.
struct Steps {
  std::vector<double> values;
  std::vector<double> scale;  // [out]
};

// in [n, I] times weight [O, I] transposed and, where `squares` isn't null, the sums of squared
// terms: [n, O] both. Terms are added in their order.
template <typename Weight>
void MultiplyRows(const double* in, int64_t n, int64_t in_width, const Weight* weight,
                  int64_t out_width, double* out, double* squares) {
  std::vector<double> block(Index(in_width * kOutputsAtOnce));  // [I, outputs at once]
  for (int64_t first = 0; first < out_width; first += kOutputsAtOnce) {
    const int64_t count = std::min(kOutputsAtOnce, out_width - first);
    for (int64_t o = 0; o < count; ++o) {
      for (int64_t i = 0; i < in_width; ++i) {
        block[Index(i * kOutputsAtOnce + o)] =
            static_cast<double>(weight[(first + o) * in_width + i]);
      }
    }
    for (int64_t t = 0; t < n; ++t) {
      std::array<double, kOutputsAtOnce> sum{}, square{};
      for (int64_t i = 0; i < in_width; ++i) {
        const double x = in[t * in_width + i];
        const double* w = block.data() + i * kOutputsAtOnce;
        for (size_t o = 0; o < sum.size(); ++o) sum[o] += x * w[o];
        if (squares == nullptr) continue;
        for (size_t o = 0; o < sum.size(); ++o) square[o] += (x * w[o]) * (x * w[o]);
      }
      std::copy_n(sum.begin(), count, out + t * out_width + first);
      if (squares != nullptr) std::copy_n(square.begin(), count, squares + t * out_width + first);
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

Steps QuantiseWeights(WeightScale way, const std::vector<float>& weight, int64_t out_width) {
  const int64_t in_width = static_cast<int64_t>(weight.size()) / out_width;
  Steps steps{{weight.begin(), weight.end()}, std::vector<double>(Index(out_width), 1.0)};
  std::vector<double>& values = steps.values;
  if (way == WeightScale::kNone) return steps;
  std::vector<float> by_input(Index(in_width));
  for (int64_t i = 0; i < in_width; ++i) {
    by_input[Index(i)] = ScaleOf(Largest(values.data() + i, out_width, in_width));
  }
  const float whole = ScaleOf(Largest(values.data(), in_width * out_width));
  for (int64_t o = 0; o < out_width; ++o) {
    double* row = values.data() + o * in_width;
    float scale = way == WeightScale::kTensor ? whole : ScaleOf(Largest(row, in_width));
    for (int64_t i = 0; i < in_width; ++i) {
      row[i] = Quantised(row[i], way == WeightScale::kWrongAxis ? by_input[Index(i)] : scale);
    }
    if (way == WeightScale::kWrongAxis) scale = by_input[Index(std::min(o, in_width - 1))];
    steps.scale[Index(o)] = static_cast<double>(scale);
  }
  return steps;
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
  const Steps weights = QuantiseWeights(plan_.weight_scale, weight, out_width);
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
  MultiplyRows(steps.data(), n, in_width, weights.values.data(), out_width, out.value.data(),
               nullptr);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t o = 0; o < out_width; ++o) {
      double& value = out.value[Index(t * out_width + o)];
      if (plan_.wrap16) value = Wrapped16(value);
      value *= scales[Index(t)] * weights.scale[Index(o)];
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
  Bounded out;
  out.value.assign(Index(n * out_width), 0.0);
  if (bounded()) out.bound.assign(out.value.size(), 0.0);
  MultiplyRows(from.data(), n, in_width, weight.data(), out_width, out.value.data(),
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
    const std::vector<double> w(weight.begin() + o * in_width, weight.begin() + (o + 1) * in_width);
    double w_norm = 0.0;
    for (const double each : w) w_norm += each * each;
    const double step = static_cast<double>(ScaleOf(Largest(w.data(), in_width)));
    for (int64_t t = 0; t < n; ++t) {
      out.bound[Index(t * out_width + o)] +=
          2.0 *
          std::sqrt(x_step[Index(t)] * x_step[Index(t)] * w_norm + step * step * x_norm[Index(t)]);
    }
  }
  return out;
}

std::vector<double> StagedLayer::RootsOfSquares(const std::vector<double>& in,
                                                const std::vector<float>& weight,
                                                int64_t out_width) {
  const int64_t in_width = static_cast<int64_t>(weight.size()) / out_width;
  const int64_t n = static_cast<int64_t>(in.size()) / in_width;
  std::vector<double> sums(Index(n * out_width)), roots(sums.size());
  MultiplyRows(in.data(), n, in_width, weight.data(), out_width, sums.data(), roots.data());
  for (double& root : roots) root = std::sqrt(root);
  return roots;
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
