// SPDX-License-Identifier: Apache-2.0
// Gates, the concatenation of heads, and W_O.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/reference/stages.h"

namespace headwise {

// The layer's own gates, then the request's.
void StagedLayer::Gate(const std::vector<double>& gates, StageTensors* out) const {
  if (spec_.gates.empty() && gates.empty()) return;
  for (size_t row = 0; row < out->rows.size(); ++row) {
    for (int64_t head = 0; head < spec_.heads; ++head) {
      double gate = spec_.gates.empty() ? 1.0 : static_cast<double>(spec_.gates[Index(head)]);
      if (!gates.empty()) gate *= gates[Index(out->rows[row] * spec_.heads + head)];
      for (int64_t i = z_begin_[Index(head)]; i < z_begin_[Index(head) + 1]; ++i) {
        const size_t at = row * Index(z_begin_.back()) + Index(i);
        out->z.value[at] = gate == 0.0 ? 0.0 : gate * out->z.value[at];
        if (bounded()) {
          out->z.bound[at] = std::fabs(gate) * out->z.bound[at] + StoreBound(out->z.value[at]);
        }
      }
    }
  }
}

// The rows of z that enter W_O for the packed query rows `rows`.
Bounded StagedLayer::Concatenate(const ReferenceInput& input, const StageTensors& tensors,
                                 const std::vector<int64_t>& rows) const {
  const int64_t width = z_begin_.back();
  const int64_t heads = spec_.heads, dv = spec_.dv.front();
  if (plan_.merge == MergeWay::kHeads && plan_.order.empty() && rows == tensors.rows) {
    return tensors.z;
  }
  // Which element of z, as (packed row of z, feature), stands at (row, feature).
  const auto source = [&](int64_t row, int64_t begin, int64_t length, int64_t e) {
    const int64_t h = e / dv, i = e % dv;
    switch (plan_.merge) {
      case MergeWay::kNoTranspose: {
        const int64_t flat = (row - begin) * width + e;
        const int64_t head = flat / (length * dv), in_head = flat % (length * dv);
        return (begin + in_head / dv) * width + head * dv + in_head % dv;
      }
      case MergeWay::kBatch: {
        const int64_t n = static_cast<int64_t>(input.positions.size());
        const int64_t flat = row * width + e;
        const int64_t head = flat / (n * dv), in_head = flat % (n * dv);
        return (in_head / dv) * width + head * dv + in_head % dv;
      }
      case MergeWay::kFeatures:
        return row * width + (e % heads) * dv + e / heads;
      default:
        return plan_.order.empty() ? row * width + e : row * width + plan_.order[Index(h)] * dv + i;
    }
  };
  Bounded out;
  int64_t begin = 0;
  size_t b = 0;
  for (const int64_t row : rows) {
    while (row >= begin + input.lengths[b]) begin += input.lengths[b++];
    for (int64_t e = 0; e < width; ++e) {
      // z holds all rows, or `rows` where rows stay apart.
      const int64_t from = source(row, begin, input.lengths[b], e);
      const int64_t z_row =
          std::lower_bound(tensors.rows.begin(), tensors.rows.end(), from / width) -
          tensors.rows.begin();
      double value = tensors.z.value[Index(z_row * width + from % width)];
      double bound = bounded() ? tensors.z.bound[Index(z_row * width + from % width)] : 0.0;
      for (int64_t head = 1; plan_.merge == MergeWay::kSum && head < heads; ++head) {
        const size_t other = Index(z_row * width + (from % width + head * dv) % width);
        value += tensors.z.value[other];
        if (bounded()) bound = bound + tensors.z.bound[other];
      }
      out.value.push_back(value);
      if (bounded()) out.bound.push_back(bound);
    }
  }
  return out;
}

void StagedLayer::ProjectOut(const ReferenceInput& input, const StageOptions& options,
                             StageTensors* out) const {
  // A scale of the whole batch needs all of it.
  const bool whole = options.rows.empty() || plan_.activation_scale == ActivationScale::kBatch;
  out->y_rows = whole ? out->rows : options.rows;
  const std::vector<int64_t>& rows = out->y_rows;
  Bounded z = Concatenate(input, *out, rows);
  const int64_t d_out = spec_.d_out;
  if (plan_.skip_wo) {
    out->y = std::move(z);
  } else {
    out->y = Multiply(z.value, {}, matrices_->wo, d_out);
    if (bounded()) {
      const std::vector<double> carried = RootsOfSquares(z.bound, matrices_->wo, d_out);
      for (size_t e = 0; e < carried.size(); ++e) out->y.bound[e] += carried[e];
    }
    std::vector<float> bias = matrices_->bo;
    for (float& b : bias) b *= static_cast<float>(plan_.bias_factor);
    for (size_t e = 0; e < out->y.value.size() && !bias.empty(); ++e) {
      const double b = static_cast<double>(bias[e % bias.size()]);
      out->y.value[e] += b;
      if (bounded()) out->y.bound[e] += (numbers_->input + 2.0 * numbers_->store) * std::fabs(b);
    }
  }
  for (size_t e = 0; e < out->y.value.size(); ++e) {
    const int64_t o = static_cast<int64_t>(e) % d_out;
    for (const int64_t slice : plan_.zero_slices) {
      if (o * spec_.heads / d_out == slice) out->y.value[e] = 0.0;
    }
    if (plan_.add_x) {
      const int64_t row = rows[e / Index(d_out)];
      out->y.value[e] += input.x[Index(row * spec_.d_model + o)];
    }
    if (bounded()) out->y.bound[e] += StoreBound(out->y.value[e], 2.0);
  }
}

// Each head's share z_r W_O^(r).
void StagedLayer::Contribute(StageTensors* out) const {
  const int64_t z_width = z_begin_.back();
  for (size_t row = 0; row < out->rows.size(); ++row) {
    const double* z = out->z.value.data() + static_cast<int64_t>(row) * z_width;
    for (int64_t head = 0; head < spec_.heads; ++head) {
      for (int64_t o = 0; o < spec_.d_out; ++o) {
        const float* w = matrices_->wo.data() + o * z_width;
        double share = 0.0;
        for (int64_t i = z_begin_[Index(head)]; i < z_begin_[Index(head) + 1]; ++i) {
          share += z[i] * static_cast<double>(w[i]);
        }
        out->contributions.push_back(share);
      }
    }
  }
}

StageTensors StagedLayer::Run(const ReferenceInput& input, const Projections& projections,
                              const StageOptions& options) const {
  StageTensors out;
  MakeHeads(input, projections, options, &out);
  Attend(input, options, &out);
  Gate(options.gates, &out);
  ProjectOut(input, options, &out);
  if (options.contributions) Contribute(&out);
  return out;
}

}  // namespace headwise
