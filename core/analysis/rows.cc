// SPDX-License-Identifier: Apache-2.0
#include "core/analysis/rows.h"

#include <algorithm>
#include <limits>

namespace headwise {
namespace {

// Where a sequence's part of the user's mask begins.
struct MaskPlace {
  int64_t keys = 0;   // of the sequences before
  int64_t pairs = 0;  // T * S of the sequences before
};

// The order alone: causal triangle and window, by index.
bool InReach(const ValidInput& input, size_t s, int64_t query, int64_t key) {
  const int64_t shift = input.causal && input.bottom_right ? input.keys[s] - input.queries[s] : 0;
  const int64_t place = query + shift;
  if (input.causal && key > place) return false;
  if (input.window < 0) return true;
  return input.causal ? place - key < input.window : std::abs(place - key) <= input.window;
}

bool HiddenByUser(const ValidInput& input, const MaskPlace& place, size_t s, int64_t heads,
                  int64_t head, int64_t query, int64_t key) {
  if (input.keep == nullptr && input.additive == nullptr) return false;
  const int64_t pair = query * input.keys[s] + key;
  int64_t at = place.keys + key;
  if (input.mask_form == MaskForm::kPair) at = place.pairs + pair;
  if (input.mask_form == MaskForm::kHead) {
    at = heads * place.pairs + head * input.queries[s] * input.keys[s] + pair;
  }
  if (input.keep != nullptr) return input.keep[at] == (input.keep_is_drop ? 1 : 0);
  return input.additive[at] == -std::numeric_limits<float>::infinity();
}

void FillShares(const float* p, int64_t keys, std::vector<double>* shares) {
  shares->assign(p, p + keys);
  double sum = 0.0;
  for (const double share : *shares) sum += share;
  for (double& share : *shares) share /= sum;
}

}  // namespace

void ForEachRow(const AnalysisInput& input, const AnalysisWatch& watch,
                const std::function<void(const WeightRow&)>& take) {
  const ValidInput& valid = *input.input;
  const int64_t heads = input.spec->heads;
  const size_t count = static_cast<size_t>(heads);
  MaskPlace place;
  WeightRow row;
  row.shares.resize(count);
  row.p.resize(count);
  row.visible.resize(count);
  for (size_t s = 0; s < valid.queries.size(); ++s) {
    row.sequence = s;
    row.keys = valid.keys[s];
    for (int64_t t = 0; t < valid.queries[s]; ++t, ++row.row) {
      if (watch.stop()) return;
      watch.Report("rows", row.row, valid.query_rows);
      row.query = t;
      for (int64_t r = 0; r < heads; ++r) {
        const size_t at = static_cast<size_t>(r);
        row.p[at] = input.p[s] + (r * valid.queries[s] + t) * row.keys;
        row.visible[at] = 0;
        for (int64_t key = 0; key < row.keys; ++key) {
          if (InReach(valid, s, t, key) && !HiddenByUser(valid, place, s, heads, r, t, key)) {
            ++row.visible[at];
          }
        }
        row.shares[at].clear();
        if (row.visible[at] > 0) FillShares(row.p[at], row.keys, &row.shares[at]);
      }
      take(row);
    }
    place.keys += row.keys;
    place.pairs += valid.queries[s] * row.keys;
  }
}

}  // namespace headwise
