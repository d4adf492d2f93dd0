// SPDX-License-Identifier: Apache-2.0
#include "core/reference/reference.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace headwise {
namespace {

// Rows [begin, end) of `tensor` [., width].
std::vector<double> Rows(const std::vector<double>& tensor, int64_t begin, int64_t end,
                         int64_t width) {
  return {tensor.begin() + begin * width, tensor.begin() + end * width};
}

}  // namespace

ReferenceLayer::ReferenceLayer(const LayerSpec& spec, const LayerMatrices& matrices)
    : stages_(spec, std::make_shared<const LayerMatrices>(matrices)) {}

std::vector<ReferenceSequence> ReferenceLayer::Run(const ReferenceInput& input,
                                                   const ReferenceOptions& options) const {
  const LayerSpec& spec = stages_.spec();
  StageTensors all = stages_.Run(input, stages_.Project(input, options.rows),
                                 {.rows = options.rows,
                                  .gates = options.gates,
                                  .contributions = true,
                                  .only_given_q_rows = !options.rows.empty()});
  std::vector<ReferenceSequence> results;
  int64_t row = 0, query_begin = 0, key_begin = 0;
  for (size_t b = 0; b < input.lengths.size(); ++b) {
    ReferenceSequence& out = results.emplace_back();
    const int64_t query_end = query_begin + input.lengths[b];
    const int64_t key_end = key_begin + input.memory_lengths[b];
    const int64_t first = row;
    out.keys = input.memory_lengths[b];
    while (row < static_cast<int64_t>(all.rows.size()) &&
           all.rows[static_cast<size_t>(row)] < query_end) {
      out.rows.push_back(all.rows[static_cast<size_t>(row++)] - query_begin);
    }
    if (options.rows.empty() || !out.rows.empty()) {
      out.q = Rows(all.q.value, first, row, spec.q_width());
      out.k = Rows(all.k.value, key_begin, key_end, spec.k_width());
      out.v = Rows(all.v.value, key_begin, key_end, spec.v_width());
      out.scores = std::move(all.scores[b].value);
      out.p = std::move(all.p[b].value);
      out.z = Rows(all.z.value, first, row, spec.z_width());
      out.y = Rows(all.y.value, first, row, spec.d_out);
      out.contributions = Rows(all.contributions, first, row, spec.heads * spec.d_out);
    }
    query_begin = query_end;
    key_begin = key_end;
  }
  return results;
}

}  // namespace headwise
