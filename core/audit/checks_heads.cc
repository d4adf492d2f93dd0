// SPDX-License-Identifier: Apache-2.0
// What an audit asks of heads: permutations, ablations, and that nothing else in the batch matters.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/audit/checker.h"

namespace headwise {
namespace {

// The contract of pruning: within this share of max |y| in f32, and in reduced numbers.
constexpr double kPrunedF32 = 1e-6;
constexpr double kPrunedReduced = 1e-2;

std::vector<double> Widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

double LargestMagnitude(const std::vector<double>& values) {
  double largest = 0.0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// Elements [begin, end) of y whose bits differ.
double BitsThatDiffer(const NamedOutput& a, const NamedOutput& b, size_t a_begin, size_t count) {
  if (a.data.size() < (a_begin + count) * sizeof(float) || b.data.size() < count * sizeof(float)) {
    return static_cast<double>(count) + 1.0;
  }
  double differ = 0.0;
  for (size_t e = 0; e < count; ++e) {
    differ += std::memcmp(a.floats() + a_begin + e, b.floats() + e, sizeof(float)) == 0 ? 0.0 : 1.0;
  }
  return differ;
}

}  // namespace

std::vector<double> Checker::BiasRows() const {
  std::vector<double> rows(y_.size(), 0.0);
  const std::vector<float>& bias = parts_.matrices.bo;
  for (size_t e = 0; e < rows.size() && !bias.empty(); ++e) {
    rows[e] = static_cast<double>(bias[e % bias.size()]);
  }
  return rows;
}

absl::Status Checker::Permutations() {
  std::vector<int64_t> order = info_.spec.head_ids;
  if (order.size() < 2) return absl::OkStatus();
  std::reverse(order.begin(), order.end());
  auto permuted = PermuteHeads(parts_, order);
  if (!permuted.ok()) return permuted.status();
  const auto y = target_->OtherY(*permuted, false, info_.dtype, KernelPath::kAuto, input_);
  if (!y.ok()) return y.status();
  Add("permuted_heads", "y with y of the heads in reverse order, their W_O rows with them",
      Between(y_, Widened(*y)), "twice the bound of y: the same sums in another order");
  return WoAlone();
}

// W_O's blocks alone in another order: the heads' outputs land on the wrong rows.
absl::Status Checker::WoAlone() {
  const LayerSpec& spec = info_.spec;
  const bool equal = std::all_of(spec.dv.begin(), spec.dv.end(),
                                 [&](int64_t dv) { return dv == spec.dv.front(); });
  if (!equal) return absl::OkStatus();
  LayerParts moved = parts_;
  const int64_t dv = spec.dv.front(), width = spec.z_width(), heads = spec.heads;
  for (int64_t o = 0; o < spec.d_out; ++o) {
    for (int64_t i = 0; i < width; ++i) {
      moved.matrices.wo[static_cast<size_t>(o * width + i)] =
          parts_.matrices.wo[static_cast<size_t>(o * width + (heads - 1 - i / dv) * dv + i % dv)];
    }
  }
  // What the reference says that it must change; nothing where blocks or heads are equal.
  const StagedLayer layer(spec, std::make_shared<const LayerMatrices>(moved.matrices), {},
                          numbers_);
  const StageTensors expected = layer.Run(reference_input_, layer.Project(reference_input_));
  const auto y = target_->OtherY(moved, false, info_.dtype, KernelPath::kAuto, input_);
  if (!y.ok()) return y.status();
  Deviation worst;
  for (size_t e = 0; e < y_.size(); ++e) {
    const double moved_by = static_cast<double>((*y)[e]) - y_[e];
    worst.Take(CompareElement(moved_by, expected.y.value[e] - right_.y.value[e],
                              expected.y.bound[e] + right_.y.bound[e]));
  }
  Add("permuted_wo_alone",
      "how far y moves when W_O's blocks alone are reversed, with how far it must (not at all only "
      "where blocks are equal)",
      worst, "the bounds of both y");
  return absl::OkStatus();
}

absl::Status Checker::Ablations() {
  const std::vector<double> bias = BiasRows();
  const auto all = target_->AblatedY(input_, info_.spec.head_ids);
  if (!all.ok()) return all.status();
  const std::vector<double> zero(bias.size(), 0.0);
  Add("ablate_all", "y with every head ablated, with b_o alone",
      all->size() == bias.size() ? CompareAll(Widened(*all), bias, zero)
                                 : CompareElement(1.0, 0.0, 0.0),
      "exact: b_o always stays");

  const int64_t head = info_.spec.head_ids.front();
  const auto one = target_->AblatedY(input_, {head});
  if (!one.ok()) return one.status();
  const std::vector<double> ablated = Widened(*one);
  const NamedOutput& shares = served_.at("contributions");
  const size_t d_out = static_cast<size_t>(info_.spec.d_out);
  const size_t heads = static_cast<size_t>(info_.spec.heads);
  Deviation of_share, of_sum;
  for (size_t e = 0; e < y_.size() && e < ablated.size(); ++e) {
    const float* row = shares.floats() + e / d_out * heads * d_out + e % d_out;
    double sum = bias[e];
    for (size_t r = 0; r < heads; ++r) sum += static_cast<double>(row[r * d_out]);
    const double bound = 2.0 * right_.y.bound[e];
    of_share.Take(CompareElement(y_[e] - ablated[e], static_cast<double>(row[0]), bound));
    of_sum.Take(CompareElement(y_[e], sum, bound));
  }
  Add("ablation_is_contribution",
      absl::StrCat("y less y without head ", head, ", with the head's contribution z W_O"),
      of_share, "twice the bound of y");
  Add("contributions_add_up", "y with b_o and the sum of all contributions", of_sum,
      "twice the bound of y");

  if (heads < 2) return absl::OkStatus();
  const auto pruned = PruneHeads(parts_, {head});
  if (!pruned.ok()) return pruned.status();
  const auto y = target_->OtherY(*pruned, false, info_.dtype, KernelPath::kAuto, input_);
  if (!y.ok()) return y.status();
  const bool exact = info_.dtype == DType::kF32;
  const double share = exact ? kPrunedF32 : kPrunedReduced;
  const std::vector<double> bound(ablated.size(), share * LargestMagnitude(y_));
  Add("ablated_vs_pruned",
      absl::StrCat("y with head ", head, " ablated, with the layer pruned of it"),
      y->size() == ablated.size() ? CompareAll(Widened(*y), ablated, bound)
                                  : CompareElement(1.0, 0.0, 0.0),
      absl::StrCat(share, " of max |y|, the contract of pruning"), /*share=*/1.0);
  return absl::OkStatus();
}

// The first sequence alone, against its rows in the batch.
absl::Status Checker::Batch() {
  const std::vector<int64_t>& lengths = reference_input_.lengths;
  // Masks and positions of a part are not to be had without unpacking them.
  if (lengths.size() < 2 || input_.mask.has_value() || input_.positions.has_value() ||
      input_.memory_positions.has_value()) {
    return absl::OkStatus();
  }
  AttentionInput alone = input_;
  alone.lengths = {lengths.front()};
  alone.x.shape = {lengths.front(), info_.spec.d_model};
  if (alone.memory.has_value()) {
    alone.memory->shape = {reference_input_.memory_lengths.front(), info_.spec.d_memory};
    alone.memory_lengths = {reference_input_.memory_lengths.front()};
  }
  const auto y = target_->Forward(alone, kOutputY);
  if (!y.ok()) return y.status();
  const size_t count = static_cast<size_t>(lengths.front() * info_.spec.d_out);
  const double differ = BitsThatDiffer(plain_.at("y"), y->at("y"), 0, count);
  Add("batch_independence",
      "y of the first sequence in the batch with y of it alone: elements whose bits differ",
      CompareElement(differ, 0.0, 0.0), "exact");
  return absl::OkStatus();
}

// A NaN at the last token of a causal sequence reaches no earlier row.
absl::Status Checker::Masks() {
  const int64_t length = reference_input_.lengths.empty() ? 0 : reference_input_.lengths.front();
  if (!reference_input_.causal || input_.memory.has_value() || length < 2) return absl::OkStatus();
  auto x = ToFloats(input_.x, "x");
  if (!x.ok()) return x.status();
  const size_t width = static_cast<size_t>(info_.spec.d_model);
  std::fill_n(x->begin() + (length - 1) * info_.spec.d_model, width,
              std::numeric_limits<float>::quiet_NaN());
  AttentionInput spoilt = input_;
  spoilt.x.dtype = DType::kF32;
  spoilt.x.data = x->data();
  const auto y = target_->Forward(spoilt, kOutputY);
  if (!y.ok()) return y.status();
  const size_t count = static_cast<size_t>((length - 1) * info_.spec.d_out);
  Add("causal_order",
      "y of the first sequence's rows with y of them after its last token became NaN: elements "
      "whose bits differ",
      CompareElement(BitsThatDiffer(plain_.at("y"), y->at("y"), 0, count), 0.0, 0.0), "exact");
  return absl::OkStatus();
}

}  // namespace headwise
