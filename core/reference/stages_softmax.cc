// SPDX-License-Identifier: Apache-2.0
// From scores to weights, the right way and others.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/reference/stages.h"

namespace headwise {
namespace {

constexpr double kMostExponent = 50.0;  // beyond it a bound on a weight says nothing anyway
constexpr double kAddedToWeights = -1e9;
constexpr double kU8Steps = 255.0;

}  // namespace

// Softmax over `count` entries from `first` on, `step` apart, that are visible; hidden ones get 0,
// and so does everything where all are hidden. A sink takes its share and gives it to nobody. A NaN
// that may be seen makes every visible entry NaN.
void StagedLayer::SoftmaxRow(int64_t head, int64_t first, int64_t count, int64_t step,
                             bool with_sink, Rows* rows) const {
  std::optional<double> sink;
  if (with_sink && !matrices_->sinks.empty() &&
      (plan_.sink == SinkWay::kDenominator || plan_.sink == SinkWay::kWrongColumn)) {
    sink = static_cast<double>(matrices_->sinks[Index(head)]);
  }
  const auto at = [&](int64_t j) { return Index(first + j * step); };
  double largest = sink.value_or(kHidden);
  for (int64_t j = 0; j < count; ++j) {
    if (rows->visible[at(j)]) largest = std::max(largest, rows->masked[at(j)]);
  }
  const bool overflow = plan_.softmax == SoftmaxWay::kOverflow;
  const double taken_off = overflow ? 0.0 : largest;
  const auto power = [&](double score) {
    const double value = std::exp(score - taken_off);
    if (overflow && value < plan_.least) return 0.0;
    return overflow && value > plan_.largest ? std::numeric_limits<double>::infinity() : value;
  };
  double sum = sink.has_value() ? power(*sink) : 0.0;
  for (int64_t j = 0; j < count; ++j) {
    if (!rows->visible[at(j)]) continue;
    rows->p.value[at(j)] = power(rows->masked[at(j)]);
    sum += rows->p.value[at(j)];
  }
  if (overflow && sum > plan_.largest) sum = std::numeric_limits<double>::infinity();
  double carried = 0.0;
  for (int64_t j = 0; j < count; ++j) {
    if (!rows->visible[at(j)]) continue;
    rows->p.value[at(j)] /= sum;
    if (bounded()) carried += std::pow(rows->p.value[at(j)] * rows->scores.bound[at(j)], 2);
  }
  carried = std::sqrt(carried);
  for (int64_t j = 0; bounded() && j < count; ++j) {
    if (!rows->visible[at(j)]) continue;
    const double p = rows->p.value[at(j)], masked = rows->masked[at(j)];
    const double added = std::fabs(masked - rows->scores.value[at(j)]);
    const double exponent =
        std::min(rows->scores.bound[at(j)] + carried + numbers_->store * added, kMostExponent);
    const double relative = std::expm1(exponent) +
                            numbers_->store * (std::fabs(masked - largest) + 6.0) +
                            kDeviations * numbers_->sum * std::sqrt(static_cast<double>(count));
    rows->p.bound[at(j)] = std::min(p * relative, 1.0) + numbers_->tiny;
  }
  if (plan_.sink != SinkWay::kWrongColumn || !sink.has_value() || count == 0) return;
  const double of_sink = power(*sink) / sum;
  for (int64_t j = 0; j + 1 < count; ++j) rows->p.value[at(j)] = rows->p.value[at(j + 1)];
  rows->p.value[at(count - 1)] = of_sink;
  if (bounded()) {
    for (int64_t j = 0; j + 1 < count; ++j) rows->p.bound[at(j)] = rows->p.bound[at(j + 1)];
    rows->p.bound[at(count - 1)] = of_sink * std::expm1(std::min(carried, kMostExponent)) +
                                   StoreBound(of_sink, 6.0 + std::fabs(*sink - largest));
  }
}

void StagedLayer::Softmax(Rows* rows) const {
  const int64_t heads = rows->heads, count = rows->count, keys = rows->keys;
  rows->p.value.assign(rows->masked.size(), 0.0);
  if (bounded()) rows->p.bound.assign(rows->masked.size(), 0.0);
  if (plan_.softmax == SoftmaxWay::kHeads) {
    for (int64_t i = 0; i < count * keys; ++i) SoftmaxRow(0, i, heads, count * keys, false, rows);
    return;
  }
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t first = head * count * keys;
    if (plan_.softmax == SoftmaxWay::kQueries) {
      for (int64_t s = 0; s < keys; ++s) SoftmaxRow(head, first + s, count, keys, false, rows);
      continue;
    }
    for (int64_t r = 0; r < count; ++r) {
      if (plan_.softmax != SoftmaxWay::kNone) {
        SoftmaxRow(head, first + r * keys, keys, 1, true, rows);
        continue;
      }
      for (int64_t at = first + r * keys; at < first + (r + 1) * keys; ++at) {
        if (!rows->visible[Index(at)]) continue;
        rows->p.value[Index(at)] = rows->masked[Index(at)];
        if (bounded()) rows->p.bound[Index(at)] = rows->scores.bound[Index(at)];
      }
    }
  }
  const bool all = plan_.softmax == SoftmaxWay::kTwiceAll;
  if (!all && plan_.softmax != SoftmaxWay::kTwiceVisible) return;
  rows->masked = rows->p.value;
  const Bounded scores = rows->scores;
  rows->scores = rows->p;  // for the bounds of the second one
  if (all) rows->visible.assign(rows->visible.size(), 1);
  for (int64_t row = 0; row < heads * count; ++row) {
    SoftmaxRow(row / count, row * keys, keys, 1, false, rows);
  }
  rows->scores = scores;
}

// What comes between the softmax and the values: rows that see nothing, masks that come too late,
// factors.
void StagedLayer::AfterSoftmax(Rows* rows) const {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t row = 0; row < rows->heads * rows->count; ++row) {
    const auto first = rows->visible.begin() + row * rows->keys;
    if (plan_.empty_row == EmptyRow::kZero) continue;
    if (std::find(first, first + rows->keys, 1) != first + rows->keys) continue;
    for (int64_t at = row * rows->keys; at < (row + 1) * rows->keys; ++at) {
      rows->visible[Index(at)] = 1;
      rows->p.value[Index(at)] =
          plan_.empty_row == EmptyRow::kNan ? nan : 1.0 / static_cast<double>(rows->keys);
      if (bounded()) rows->p.bound[Index(at)] = StoreBound(1.0 / static_cast<double>(rows->keys));
    }
  }
  const bool late =
      plan_.mask == MaskWay::kAfterSoftmax || plan_.mask == MaskWay::kAddedAfterSoftmax;
  for (size_t at = 0; at < rows->p.value.size(); ++at) {
    double& p = rows->p.value[at];
    if (late && rows->hidden[at]) {
      p = plan_.mask == MaskWay::kAfterSoftmax ? 0.0 : p + kAddedToWeights;
      if (bounded()) rows->p.bound[at] = StoreBound(p, 2.0);
    }
    p *= plan_.weight_factor;
    if (bounded()) rows->p.bound[at] *= plan_.weight_factor;
    if (plan_.weights_in_u8) p = std::nearbyint(p * kU8Steps) / kU8Steps;
  }
  // The columns have moved, the sink's onto the last key.
  if (plan_.sink == SinkWay::kWrongColumn) rows->visible.assign(rows->visible.size(), 1);
}

}  // namespace headwise
