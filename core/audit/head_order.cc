// SPDX-License-Identifier: Apache-2.0
#include "core/audit/head_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace headwise {
namespace {

constexpr int64_t kEquationsAnUnknown = 3;
constexpr int kMostSteps = 300;
constexpr double kSmallResidual = 1e-16;  // of the squared right side

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// rows [n, unknowns].
struct System {
  int64_t unknowns = 0;
  std::vector<double> rows, right;

  std::vector<double> Times(const std::vector<double>& x) const {
    std::vector<double> out(right.size(), 0.0);
    for (size_t n = 0; n < right.size(); ++n) {
      const double* row = rows.data() + static_cast<int64_t>(n) * unknowns;
      for (int64_t u = 0; u < unknowns; ++u) out[n] += row[u] * x[static_cast<size_t>(u)];
    }
    return out;
  }
  std::vector<double> TransposedTimes(const std::vector<double>& x) const {
    std::vector<double> out(static_cast<size_t>(unknowns), 0.0);
    for (size_t n = 0; n < right.size(); ++n) {
      const double* row = rows.data() + static_cast<int64_t>(n) * unknowns;
      for (int64_t u = 0; u < unknowns; ++u) out[static_cast<size_t>(u)] += row[u] * x[n];
    }
    return out;
  }
};

bool Finite(const double* values, int64_t count) {
  return std::all_of(values, values + count, [](double value) { return std::isfinite(value); });
}

// Rows (tokens) that say something of the order: a NaN in x makes some of y NaN in any order.
std::vector<int64_t> FiniteRows(const AuditCase& c, const StageTensors& tensors,
                                const std::vector<double>& y) {
  std::vector<int64_t> rows;
  const int64_t count = static_cast<int64_t>(y.size()) / c.spec.d_out, width = c.spec.z_width();
  for (int64_t row = 0; row < count; ++row) {
    if (Finite(y.data() + row * c.spec.d_out, c.spec.d_out) &&
        Finite(tensors.z.value.data() + row * width, width)) {
      rows.push_back(row);
    }
  }
  return rows;
}

// Elements of y in `rows`, spread evenly, as sums of what each head would give at each place.
System MakeSystem(const AuditCase& c, const StageTensors& tensors, const std::vector<double>& y,
                  const std::vector<int64_t>& rows) {
  const int64_t heads = c.spec.heads, dv = c.spec.dv.front(), width = c.spec.z_width();
  System system;
  system.unknowns = heads * heads;
  const int64_t all = static_cast<int64_t>(rows.size()) * c.spec.d_out;
  const int64_t count = std::min(all, kEquationsAnUnknown * system.unknowns + 16);
  for (int64_t n = 0; n < count; ++n) {
    // Columns move on with the rows, so that a few rows don't stand for all.
    const int64_t row = rows[static_cast<size_t>(n * (all / c.spec.d_out) / count)];
    const int64_t o = (n * 7919) % c.spec.d_out;
    const double* z = tensors.z.value.data() + row * width;
    const float* w = c.matrices->wo.data() + o * width;
    for (int64_t r = 0; r < heads; ++r) {
      for (int64_t s = 0; s < heads; ++s) {
        double share = 0.0;
        for (int64_t i = 0; i < dv; ++i) {
          share += z[r * dv + i] * static_cast<double>(w[s * dv + i]);
        }
        system.rows.push_back(share);
      }
    }
    const double bias =
        c.matrices->bo.empty() ? 0.0 : static_cast<double>(c.matrices->bo[static_cast<size_t>(o)]);
    system.right.push_back(y[static_cast<size_t>(row * c.spec.d_out + o)] - bias);
  }
  return system;
}

// Conjugate gradients on the normal equations, columns brought to one size first.
std::vector<double> LeastSquares(System system) {
  const size_t unknowns = static_cast<size_t>(system.unknowns);
  std::vector<double> size(unknowns, 0.0);
  for (size_t at = 0; at < system.rows.size(); ++at) {
    size[at % unknowns] += system.rows[at] * system.rows[at];
  }
  for (double& s : size) s = s > 0.0 ? std::sqrt(s) : 1.0;
  for (size_t at = 0; at < system.rows.size(); ++at) system.rows[at] /= size[at % unknowns];
  std::vector<double> x(unknowns, 0.0), left = system.right;
  std::vector<double> gradient = system.TransposedTimes(left), direction = gradient;
  double square = Dot(gradient, gradient);
  const double enough = kSmallResidual * square;
  for (int step = 0; step < kMostSteps && square > enough; ++step) {
    const std::vector<double> image = system.Times(direction);
    const double length = square / Dot(image, image);
    for (size_t u = 0; u < unknowns; ++u) x[u] += length * direction[u];
    for (size_t n = 0; n < left.size(); ++n) left[n] -= length * image[n];
    gradient = system.TransposedTimes(left);
    const double next = Dot(gradient, gradient);
    for (size_t u = 0; u < unknowns; ++u) {
      direction[u] = gradient[u] + next / square * direction[u];
    }
    square = next;
  }
  for (size_t u = 0; u < unknowns; ++u) x[u] /= size[u];
  return x;
}

}  // namespace

std::optional<std::vector<int64_t>> FindHeadOrder(const AuditCase& c, const StageTensors& tensors,
                                                  const std::vector<double>& y) {
  const int64_t heads = c.spec.heads;
  if (!c.spec.equal_widths() || heads < 2 || heads > kMostAssignedHeads || y.empty()) {
    return std::nullopt;
  }
  const std::vector<int64_t> rows = FiniteRows(c, tensors, y);
  if (rows.empty()) return std::nullopt;
  const std::vector<double> share = LeastSquares(MakeSystem(c, tensors, y, rows));
  std::vector<std::tuple<double, int64_t, int64_t>> largest;
  for (int64_t r = 0; r < heads; ++r) {
    for (int64_t s = 0; s < heads; ++s) {
      largest.emplace_back(-share[static_cast<size_t>(r * heads + s)], r, s);
    }
  }
  std::sort(largest.begin(), largest.end());
  std::vector<int64_t> order(static_cast<size_t>(heads), -1);
  std::vector<bool> used(static_cast<size_t>(heads), false);
  for (const auto& [size, r, s] : largest) {
    if (used[static_cast<size_t>(r)] || order[static_cast<size_t>(s)] >= 0) continue;
    used[static_cast<size_t>(r)] = true;
    order[static_cast<size_t>(s)] = r;
  }
  return order;
}

}  // namespace headwise
