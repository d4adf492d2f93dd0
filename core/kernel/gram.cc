// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/gram.h"

#include <algorithm>

#include "core/kernel/project_out.h"
#include "core/kernel/vector_ops.h"

namespace headwise {
namespace {

// Rows are padded to whole vectors; zeros add nothing.
constexpr int64_t kGramStep = 16;
// Tokens a lane sums before its f32 sum goes into f64.
constexpr int64_t kLaneTokens = 16;

}  // namespace

void RunGram(const AttentionLayer& layer, const float* z, const float* y, int64_t tokens,
             int64_t first_block, int64_t last_block, double* gram, WorkerScratch* scratch) {
  const int64_t heads = layer.spec().heads;
  const int64_t rows = heads + 1;
  const int64_t d_out = layer.spec().d_out;
  for (int64_t b = first_block; b < last_block; ++b) {
    const size_t block = static_cast<size_t>(b);
    const int64_t width = layer.wo().blocks()[block].width;
    const int64_t column = layer.wo().blocks()[block].column;
    const int64_t padded = (width + kGramStep - 1) / kGramStep * kGramStep;
    float* buffer = scratch->rows.Reserve(kGramTokens * rows * padded);
    if (padded != width) std::fill_n(buffer, tokens * rows * padded, 0.0f);
    for (int64_t head = 0; head < heads; ++head) {
      RunContribution(layer, head, block, z, tokens, rows * padded, buffer + head * padded,
                      scratch);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(y + t * d_out + column, width, buffer + (t * rows + heads) * padded);
    }
    for (int64_t t = 0; t < tokens; t += kLaneTokens) {
      AddGram(buffer + t * rows * padded, std::min(kLaneTokens, tokens - t), rows, padded, gram);
    }
  }
}

}  // namespace headwise
