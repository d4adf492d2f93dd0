// SPDX-License-Identifier: Apache-2.0
#include "core/format/head_comparison.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

using Pair = OneHotReadings::Pair;

double Dot(const Pair& a, const Pair& b) { return a[0] * b[0] + a[1] * b[1]; }

// z of one head: sum over keys of its weight times the key's value.
Pair Read(const Pair& weights, const std::array<Pair, 2>& values) {
  return {weights[0] * values[0][0] + weights[1] * values[1][0],
          weights[0] * values[0][1] + weights[1] * values[1][1]};
}

// The weights (p, 1 - p) whose reading lies nearest to `target`: the foot of the perpendicular on
// the line between the two values, kept between them.
Pair NearestWeights(const std::array<Pair, 2>& values, const Pair& target) {
  const Pair line = {values[0][0] - values[1][0], values[0][1] - values[1][1]};
  const Pair rest = {target[0] - values[1][0], target[1] - values[1][1]};
  const double p = std::clamp(Dot(rest, line) / Dot(line, line), 0.0, 1.0);
  return {p, 1.0 - p};
}

// The wanted reading is linear in the values, with a row of coefficients for each key. One head
// behind any W_O gives rows that are multiples of one row, so the least squared error is what the
// best matrix of rank 1 leaves: the smaller eigenvalue of the rows' products.
double ErrorWithAnyOutput(const std::array<Pair, 2>& weights) {
  const Pair key0 = {weights[0][0], weights[1][0]}, key1 = {weights[0][1], weights[1][1]};
  const double a = Dot(key0, key0), b = Dot(key0, key1), d = Dot(key1, key1);
  const double smaller = (a + d) / 2.0 - std::hypot((a - d) / 2.0, b);
  return std::sqrt(smaller / (a + d));
}

int64_t Sum(const std::vector<int64_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), int64_t{0});
}

}  // namespace

absl::StatusOr<HeadComparison> CompareHeadCounts(const CountShape& layer, const CountWorkload& work,
                                                 absl::Span<const int64_t> head_counts) {
  const int64_t keys = Sum(layer.dk), values = Sum(layer.dv);
  if (head_counts.empty()) {
    return absl::InvalidArgumentError("head_counts: must name a head count; was empty");
  }
  HeadComparison comparison;
  for (const int64_t heads : head_counts) {
    if (heads < 1 || keys % heads != 0 || values % heads != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("head_counts: must divide the heads' widths together (dk ", keys, ", dv ",
                       values, ") evenly; was ", heads));
    }
    HeadCountRow row{.heads = heads,
                     .dk = keys / heads,
                     .dv = values / heads,
                     .scale = 1.0 / std::sqrt(static_cast<double>(keys / heads)),
                     .counts = {}};
    CountShape shape = layer;
    shape.dk.assign(static_cast<size_t>(heads), row.dk);
    shape.dv.assign(static_cast<size_t>(heads), row.dv);
    shape.kv_dk = shape.dk;
    shape.kv_dv = shape.dv;
    shape.q_statistic_rows = shape.k_statistic_rows = 0;
    shape.q_statistic_bias = shape.k_statistic_bias = false;
    absl::StatusOr<std::vector<Count>> counts = CountLayer(shape, work);
    if (!counts.ok()) return counts.status();
    row.counts = *std::move(counts);
    comparison.rows.push_back(std::move(row));
  }
  const std::vector<Count>& first = comparison.rows[0].counts;
  for (size_t i = 0; i < first.size(); ++i) {
    const bool same =
        std::all_of(comparison.rows.begin(), comparison.rows.end(),
                    [&](const HeadCountRow& row) { return row.counts[i].value == first[i].value; });
    (same ? comparison.unchanged : comparison.changes).push_back(first[i].id);
  }
  return comparison;
}

OneHotReadings CompareOneHotReadings() {
  OneHotReadings readings;
  readings.values = {Pair{1.0, 0.0}, Pair{0.0, 1.0}};
  readings.weights = {Pair{1.0, 0.0}, Pair{0.0, 1.0}};
  for (size_t head = 0; head < 2; ++head) {
    readings.two_heads[head] = Read(readings.weights[head], readings.values)[head];
  }
  readings.best_weights = NearestWeights(readings.values, readings.two_heads);
  readings.one_head = Read(readings.best_weights, readings.values);
  const Pair gap = {readings.two_heads[0] - readings.one_head[0],
                    readings.two_heads[1] - readings.one_head[1]};
  readings.error = std::sqrt(Dot(gap, gap));
  readings.relative_error = readings.error / std::sqrt(Dot(readings.two_heads, readings.two_heads));
  readings.relative_error_any_wo = ErrorWithAnyOutput(readings.weights);
  return readings;
}

}  // namespace headwise
