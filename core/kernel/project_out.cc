// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/project_out.h"

#include <algorithm>

#include "core/kernel/vector_ops.h"

namespace headwise {

void RunProjectOut(const AttentionLayer& layer, const float* z, const float* scale_z, int64_t row,
                   int64_t rows, int64_t first_block, int64_t last_block, RowSink sink,
                   WorkerScratch* scratch) {
  const PackedMatrix& wo = layer.wo();
  const int64_t stride = layer.tile_stride();
  float* tile = scratch->tile.Reserve<float>(kTileRows * stride);
  for (int64_t first = row; first < row + rows; first += kTileRows) {
    const int64_t count = std::min(kTileRows, row + rows - first);
    const float* scales = scale_z == nullptr ? nullptr : scale_z + first * wo.depth();
    const TileRows numbers = wo.MakeRows(z + first * wo.depth(), count, scales, &scratch->input);
    for (int64_t b = first_block; b < last_block; ++b) {
      const PackedMatrix::Block& block = wo.blocks()[static_cast<size_t>(b)];
      wo.MultiplyBlock(static_cast<size_t>(b), numbers, tile);
      for (int64_t i = 0; i < count; ++i) {
        float* y = sink(first + i);
        if (y == nullptr) continue;
        const float* result = tile + i * stride;
        if (wo.bias() == nullptr) {
          std::copy_n(result, block.width, y + block.column);
        } else {
          Add(result, wo.bias() + block.column, block.width, y + block.column);
        }
      }
    }
  }
}

void RunContribution(const AttentionLayer& layer, int64_t head, size_t block, const TileRows& z,
                     float* out) {
  layer.wo().MultiplyPart(block, head, z, out);
}

}  // namespace headwise
