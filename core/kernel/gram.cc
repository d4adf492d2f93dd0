// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/gram.h"

#include <algorithm>
#include <vector>

#include "core/kernel/project_out.h"
#include "core/kernel/stack_ops.h"

namespace headwise {
namespace {

// Tokens a lane sums before its f32 sum goes into f64.
constexpr int64_t kLaneTokens = 16;

// The deltas' rows of one column block, `tile` floats apart.
void FillDeltas(const AttentionLayer& layer, const GramDeltas& deltas, size_t block,
                const std::vector<TileRows>& numbers, int64_t tile, float* out) {
  for (const GramDeltas::Row& row : deltas.rows) {
    if (row.matrix < 0) {
      std::fill_n(out, tile, 0.0f);
    } else {
      RunContribution(layer, row.head, block, numbers[static_cast<size_t>(row.matrix)], out);
    }
    out += tile;
  }
}

}  // namespace

void RunGram(const AttentionLayer& layer, const float* z, int64_t tokens, int64_t first_block,
             int64_t last_block, const GramDeltas* deltas, double* gram, WorkerScratch* scratch) {
  const PackedMatrix& wo = layer.wo();
  const int64_t heads = layer.spec().heads;
  const int64_t stride = layer.tile_stride();
  const int64_t tile = kGramTokens * stride;
  const int64_t rows =
      heads + 1 + (deltas == nullptr ? 0 : static_cast<int64_t>(deltas->rows.size()));
  float* buffer = scratch->rows.Reserve<float>(rows * tile);
  float* y = buffer + heads * tile;
  const TileRows numbers = wo.MakeRows(z, tokens, nullptr, &scratch->input);
  std::vector<RowScratch> delta_scratch(deltas == nullptr ? 0 : deltas->differences.size());
  std::vector<TileRows> delta_numbers;
  for (size_t i = 0; i < delta_scratch.size(); ++i) {
    delta_numbers.push_back(
        wo.MakeRows(deltas->differences[i], tokens, nullptr, &delta_scratch[i]));
  }
  for (int64_t b = first_block; b < last_block; ++b) {
    const PackedMatrix::Block& block = wo.blocks()[static_cast<size_t>(b)];
    const int64_t padded = RoundUp(block.width, kTileStep);
    for (int64_t head = 0; head < heads; ++head) {
      RunContribution(layer, head, static_cast<size_t>(b), numbers, buffer + head * tile);
    }
    SumMatrices({buffer, heads, tokens, block.width, tile, stride},
                wo.bias() == nullptr ? nullptr : wo.bias() + block.column, y);
    if (deltas != nullptr) {
      FillDeltas(layer, *deltas, static_cast<size_t>(b), delta_numbers, tile, y + tile);
    }
    for (int64_t row = 0; row < rows && padded > block.width; ++row) {
      for (int64_t t = 0; t < tokens; ++t) {
        float* end = buffer + row * tile + t * stride;
        std::fill(end + block.width, end + padded, 0.0f);
      }
    }
    for (int64_t t = 0; t < tokens; t += kLaneTokens) {
      AddGram({buffer + t * stride, rows, std::min(kLaneTokens, tokens - t), padded, tile, stride},
              gram);
    }
  }
}

}  // namespace headwise
