// SPDX-License-Identifier: Apache-2.0
// A weight matrix laid out once for the tile product.
#ifndef HEADWISE_CORE_KERNEL_PACKED_MATRIX_H_
#define HEADWISE_CORE_KERNEL_PACKED_MATRIX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/memory.h"
#include "core/kernel/tile_kernel.h"

namespace headwise {

// Rows of a tile: 64 rows of A against a panel of at most kChunk x 64 weights keep both in a 1 MiB
// second-level cache (measured: 116 of 116 GFLOP/s a core at 64 x 64 x 768).
inline constexpr int64_t kTileRows = 64;

// W [columns, depth] (out x in) as blocks of columns: block b is a [depth, width_b] row-major panel
// that the product streams through once. Immutable; thread-safe.
class PackedMatrix {
 public:
  struct Block {
    int64_t column = 0;  // first column of the result
    int64_t width = 0;
    int64_t offset = 0;  // of the panel, in floats
  };

  PackedMatrix() = default;

  // `widths` sum to `columns`. `lda` is the row stride of A, `ldc` that of C. `bias` is [columns]
  // or empty. UNIMPLEMENTED if `path` can't run here.
  static absl::StatusOr<PackedMatrix> Pack(KernelPath path, absl::Span<const float> weights,
                                           absl::Span<const float> bias, int64_t columns,
                                           int64_t depth, absl::Span<const int64_t> widths,
                                           int64_t lda, int64_t ldc);

  // c [rows, width] = a [rows, depth] times the block; rows <= kTileRows; the bias is not added.
  // The sum over depth is cut at fixed places, so a row's bits depend on nothing but the row.
  void MultiplyBlock(size_t block, const float* a, int64_t rows, float* c) const;

  // The same over depth [begin, begin + count) only, by kernels made for it (MakeSliceKernels).
  const float* PanelRows(size_t block, int64_t begin) const {
    return panels_.data() + blocks_[block].offset + begin * blocks_[block].width;
  }

  const std::vector<Block>& blocks() const { return blocks_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  int64_t columns() const { return columns_; }
  int64_t depth() const { return depth_; }
  int64_t max_width() const { return max_width_; }
  int64_t bytes() const { return panels_.size() * static_cast<int64_t>(sizeof(float)); }

 private:
  // Kernels of one block width: [chunk kind][rows - 1]. The first chunk overwrites C, later ones
  // add.
  struct KernelSet {
    int64_t width = 0;
    std::vector<std::shared_ptr<const TileKernel>> first, later, last;
  };
  absl::Status MakeKernels(KernelPath path, int64_t lda, int64_t ldc);

  int64_t columns_ = 0;
  int64_t depth_ = 0;
  int64_t max_width_ = 0;
  std::vector<Block> blocks_;
  std::vector<size_t> kernel_set_;  // of each block
  std::vector<KernelSet> kernel_sets_;
  std::vector<float> bias_;
  MappedFloats panels_;
};

// Kernels for rows 1…kTileRows of C [rows, n] (+)= A [rows, k] B [k, n]; index rows - 1.
absl::StatusOr<std::vector<std::shared_ptr<const TileKernel>>> MakeRowKernels(KernelPath path,
                                                                              TileShape shape);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_PACKED_MATRIX_H_
