// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/gram.h"

#include <algorithm>

#include "core/kernel/project_out.h"
#include "core/kernel/stack_ops.h"

namespace headwise {
namespace {

// Tokens a lane sums before its f32 sum goes into f64.
constexpr int64_t kLaneTokens = 16;

}  // namespace

void RunGram(const AttentionLayer& layer, const float* z, int64_t tokens, int64_t first_block,
             int64_t last_block, double* gram, WorkerScratch* scratch) {
  const PackedMatrix& wo = layer.wo();
  const int64_t heads = layer.spec().heads;
  const int64_t stride = layer.tile_stride();
  const int64_t tile = kGramTokens * stride;
  float* buffer = scratch->rows.Reserve<float>((heads + 1) * tile);
  float* y = buffer + heads * tile;
  const TileRows numbers = wo.MakeRows(z, tokens, nullptr, &scratch->input);
  for (int64_t b = first_block; b < last_block; ++b) {
    const PackedMatrix::Block& block = wo.blocks()[static_cast<size_t>(b)];
    const int64_t padded = RoundUp(block.width, kTileStep);
    for (int64_t head = 0; head < heads; ++head) {
      RunContribution(layer, head, static_cast<size_t>(b), numbers, buffer + head * tile);
    }
    SumMatrices({buffer, heads, tokens, block.width, tile, stride},
                wo.bias() == nullptr ? nullptr : wo.bias() + block.column, y);
    for (int64_t row = 0; row <= heads && padded > block.width; ++row) {
      for (int64_t t = 0; t < tokens; ++t) {
        float* end = buffer + row * tile + t * stride;
        std::fill(end + block.width, end + padded, 0.0f);
      }
    }
    for (int64_t t = 0; t < tokens; t += kLaneTokens) {
      AddGram(
          {buffer + t * stride, heads + 1, std::min(kLaneTokens, tokens - t), padded, tile, stride},
          gram);
    }
  }
}

}  // namespace headwise
