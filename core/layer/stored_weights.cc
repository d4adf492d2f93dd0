// SPDX-License-Identifier: Apache-2.0
#include "core/layer/stored_weights.h"

#include <utility>

namespace headwise {
namespace {

using enum TensorRole;

StoredWeight Whole(TensorRole weight, TensorRole bias, WeightMatrix matrix, int64_t rows,
                   int64_t depth) {
  return {weight, bias, rows, depth, {{matrix, 0, rows}}};
}

// The stretches of a weight that holds q, k and v. Within each matrix the heads come in axis order,
// so each stretch follows the one before. (PER_GROUP: a group's query heads in axis order.)
class FusedStretches {
 public:
  explicit FusedStretches(const LayerSpec& spec) : spec_(spec) {}

  std::vector<WeightStretch> List() {
    if (spec_.fused_layout == FusedLayout::kBlocks) {
      Append(WeightMatrix::kQ, spec_.q_width());
      Append(WeightMatrix::kK, spec_.k_width());
      Append(WeightMatrix::kV, spec_.v_width());
      return std::move(stretches_);
    }
    for (int64_t group = 0; group < spec_.kv_heads; ++group) {
      AppendQueries(group);
      Append(WeightMatrix::kK, spec_.kv_dk(group));
      Append(WeightMatrix::kV, spec_.kv_dv(group));
    }
    return std::move(stretches_);
  }

 private:
  void AppendQueries(int64_t group) {
    if (spec_.fused_layout == FusedLayout::kPerHead) {
      return Append(WeightMatrix::kQ, spec_.dk[static_cast<size_t>(group)]);
    }
    for (size_t r = 0; r < spec_.dk.size(); ++r) {
      if (spec_.query_to_kv[r] == group) Append(WeightMatrix::kQ, spec_.dk[r]);
    }
  }

  void Append(WeightMatrix matrix, int64_t rows) {
    int64_t& next = next_[static_cast<size_t>(matrix)];
    stretches_.push_back({matrix, next, rows});
    next += rows;
  }

  const LayerSpec& spec_;
  std::vector<WeightStretch> stretches_;
  int64_t next_[3] = {};
};

}  // namespace

std::vector<StoredWeight> ListStoredWeights(const LayerSpec& spec, bool q_apart) {
  const int64_t q = spec.q_width(), k = spec.k_width(), v = spec.v_width();
  std::vector<StoredWeight> stored;
  if (spec.fused_layout != FusedLayout::kSeparate && !q_apart) {
    stored.push_back({kQkvWeight, kQkvBias, q + k + v, spec.d_model, FusedStretches(spec).List()});
  } else {
    stored.push_back(Whole(kQWeight, kQBias, WeightMatrix::kQ, q, spec.d_model));
  }
  if (q_apart) {
    stored.push_back({kKvWeight,
                      kKvBias,
                      k + v,
                      spec.d_memory,
                      {{WeightMatrix::kK, 0, k}, {WeightMatrix::kV, 0, v}}});
  } else if (spec.fused_layout == FusedLayout::kSeparate) {
    stored.push_back(Whole(kKWeight, kKBias, WeightMatrix::kK, k, spec.d_memory));
    stored.push_back(Whole(kVWeight, kVBias, WeightMatrix::kV, v, spec.d_memory));
  }
  if (const int64_t rows = spec.q_statistic_rows(); rows > 0) {
    stored.push_back(
        Whole(kQStatistic, kQStatisticBias, WeightMatrix::kQStatistic, rows, spec.d_model));
  }
  if (const int64_t rows = spec.k_statistic_rows(); rows > 0) {
    stored.push_back(
        Whole(kKStatistic, kKStatisticBias, WeightMatrix::kKStatistic, rows, spec.d_memory));
  }
  stored.push_back(Whole(kOWeight, kOBias, WeightMatrix::kO, spec.d_out, spec.z_width()));
  return stored;
}

}  // namespace headwise
