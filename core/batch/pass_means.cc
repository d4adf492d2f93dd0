// SPDX-License-Identifier: Apache-2.0
// Means of z over valid tokens: what MEAN puts in its place, and what is returned to be added up.
#include <algorithm>

#include "core/batch/pass.h"

namespace headwise {

// A row that sees a key and isn't itself hidden by a mask of keys, which marks padding.
bool Pass::Valid(const Member& member, const SequencePlan& sequence, int64_t head,
                 int64_t query) const {
  const KeyRange range = sequence.Visible(query);
  if (range.begin >= range.end) return false;
  if (!sequence.masked()) return true;
  const ValidInput& input = member.item->input;
  if (!input.has_memory && input.mask_form == MaskForm::kKey && query < sequence.keys &&
      sequence.HiddenByUser(head, query, query)) {
    return false;
  }
  for (int64_t key = range.begin; key < range.end; ++key) {
    if (!sequence.HiddenByUser(head, query, key)) return true;
  }
  return false;
}

int64_t Pass::SumValid(const Member& member, const SequencePlan& sequence, int64_t head,
                       int64_t begin, int64_t end, double* sum) const {
  const int64_t dv = layer().spec().dv[static_cast<size_t>(head)];
  int64_t count = 0;
  for (int64_t t = begin; t < std::min(end, sequence.queries); ++t) {
    if (!Valid(member, sequence, head, t)) continue;
    const float* z = data_.z + (sequence.q_row + t) * layer().z_width() +
                     layer().z_offsets()[static_cast<size_t>(head)];
    for (int64_t d = 0; d < dv; ++d) sum[d] += static_cast<double>(z[d]);
    ++count;
  }
  return count;
}

// Without a valid token the mean is 0.
void Pass::TakeMeans(Member* member, size_t source) {
  const ReplacementSource& from = member->item->ablation->plan.sources[source];
  std::vector<float>& means = member->replaced[source];
  means.assign(static_cast<size_t>(from.width), 0.0f);
  std::vector<HeadMeanSums>& sums = member->result.mean_sums[source];
  sums.resize(from.heads.size());
  RunTasks(static_cast<int64_t>(from.heads.size()), [&](int64_t i, WorkerScratch*) {
    const int64_t head = from.heads[static_cast<size_t>(i)];
    HeadMeanSums& mean = sums[static_cast<size_t>(i)];
    mean.head = layer().spec().head_ids[static_cast<size_t>(head)];
    mean.sum.assign(static_cast<size_t>(layer().spec().dv[static_cast<size_t>(head)]), 0.0);
    for (size_t q = 0; q < member->item->input.queries.size(); ++q) {
      const SequencePlan& s = data_.sequences[static_cast<size_t>(member->first_sequence) + q];
      if (!from.selection.Touches(static_cast<int64_t>(q), s.queries)) continue;
      mean.tokens +=
          SumValid(*member, s, head, from.selection.begin, from.selection.end, mean.sum.data());
    }
    float* out = means.data() + from.columns[static_cast<size_t>(head)];
    for (size_t d = 0; d < mean.sum.size() && mean.tokens > 0; ++d) {
      out[d] = static_cast<float>(mean.sum[d] / static_cast<double>(mean.tokens));
    }
  });
}

void Pass::TakeSequenceMeans(Member* member) {
  if (!member->item->ablation->return_means) return;
  const int64_t heads = layer().spec().heads, width = layer().z_width();
  const int64_t sequences = static_cast<int64_t>(member->item->input.queries.size());
  SequenceMeans& means = member->result.means;
  means.z.assign(static_cast<size_t>(sequences * width), 0.0);
  means.tokens.assign(static_cast<size_t>(sequences * heads), 0);
  RunTasks(sequences, [&](int64_t i, WorkerScratch*) {
    const SequencePlan& s = data_.sequences[static_cast<size_t>(member->first_sequence + i)];
    for (int64_t head = 0; head < heads; ++head) {
      double* mean = means.z.data() + i * width + layer().z_offsets()[static_cast<size_t>(head)];
      const int64_t count = SumValid(*member, s, head, 0, s.queries, mean);
      means.tokens[static_cast<size_t>(i * heads + head)] = count;
      for (int64_t d = 0; d < layer().spec().dv[static_cast<size_t>(head)] && count > 0; ++d) {
        mean[d] /= static_cast<double>(count);
      }
    }
  });
}

}  // namespace headwise
