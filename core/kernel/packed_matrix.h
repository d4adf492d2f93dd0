// SPDX-License-Identifier: Apache-2.0
// A weight matrix laid out once for the tile product, and the rows that it multiplies.
#ifndef HEADWISE_CORE_KERNEL_PACKED_MATRIX_H_
#define HEADWISE_CORE_KERNEL_PACKED_MATRIX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/memory.h"
#include "core/kernel/tile_kernel.h"
#include "core/kernel/tile_sizes.h"

namespace headwise {

// Up to kTileRows rows in the numbers of a PackedMatrix, made by PackedMatrix::MakeRows.
struct TileRows {
  const void* data = nullptr;     // [rows, packed_depth]
  const float* scales = nullptr;  // int8: [rows]
  int64_t rows = 0;
};

// Where MakeRows puts what it makes; one for each worker.
struct RowScratch {
  Scratch numbers;
  float scales[kTileRows] = {};
};

struct MatrixShape {
  int64_t columns = 0;  // of the result
  int64_t depth = 0;    // length of the sums
  // Column blocks of the result; their widths sum to `columns`.
  absl::Span<const int64_t> widths;
  // Parts of the depth that are multiplied apart too (heads of W_O); they sum to `depth`. Empty:
  // one part.
  absl::Span<const int64_t> parts;
};

// W [columns, depth] (out x in) as blocks of columns: block b is a [depth, width_b] panel that the
// product streams through once. In reduced types the rows of a panel lie interleaved, each part
// filled up with zeros to whole groups. int8 has a scale a column, amax / 127.
// Immutable once its weights are packed; thread-safe then.
class PackedMatrix {
 public:
  struct Block {
    int64_t column = 0;  // first column of the result
    int64_t width = 0;
    int64_t offset = 0;  // of the panel, in elements
  };

  PackedMatrix() = default;

  // A matrix whose weights are still to come by PackColumns. `ldc` is the row stride of results.
  // `bias` is [columns] or empty. UNIMPLEMENTED if `path` can't run here.
  static absl::StatusOr<PackedMatrix> Prepare(KernelPath path, TileType type,
                                              absl::Span<const float> bias,
                                              const MatrixShape& shape, int64_t ldc);

  // Lays rows [first, first + count) of W out, f32 [count, depth]: that many columns of the result.
  // Each row once and all of them, in any order, before the matrix is multiplied or shared.
  void PackColumns(int64_t first, int64_t count, const float* weights);

  // Before PackColumns, of a matrix in f32: keeps its product with rows f32 [count, depth], count
  // <= kTileRows, and not its weights, which take many times the memory. `rows` must stay until the
  // last PackColumns. MultiplyBlock then knows the answer for these `count` rows, and only that.
  void KeepProductsOf(const float* rows, int64_t count);

  // Both at once; `weights` [columns, depth].
  static absl::StatusOr<PackedMatrix> Pack(KernelPath path, TileType type,
                                           absl::Span<const float> weights,
                                           absl::Span<const float> bias, const MatrixShape& shape,
                                           int64_t ldc);

  // Rows of f32 [rows, depth] in the matrix's numbers; f32 is read where it lies. `scale_rows`:
  // int8 takes each row's scale from the same row of this matrix instead (null: its own).
  TileRows MakeRows(const float* in, int64_t rows, const float* scale_rows,
                    RowScratch* scratch) const;

  // c [rows, width] = rows times the block, in f32; the bias is not added. The sum over depth is
  // cut at fixed places, so a row's bits depend on nothing but the row.
  void MultiplyBlock(size_t block, const TileRows& rows, float* c) const;

  // The same over part `part` of the depth only. For a matrix packed with parts.
  void MultiplyPart(size_t block, int64_t part, const TileRows& rows, float* c) const;

  const std::vector<Block>& blocks() const { return blocks_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  int64_t columns() const { return columns_; }
  int64_t depth() const { return depth_; }
  TileType type() const { return type_; }
  int64_t bytes() const { return panels_.size(); }

 private:
  // A stretch of the depth that is multiplied apart.
  struct Part {
    int64_t begin = 0, width = 0;  // in the given depth
    int64_t packed = 0;            // first packed row
    int64_t packed_width = 0;      // whole groups
  };
  // Kernels of one block width: [chunk kind][rows - 1]. The first chunk overwrites C, later ones
  // add.
  using RowKernels = std::vector<std::shared_ptr<const TileKernel>>;
  struct KernelSet {
    int64_t width = 0;
    RowKernels first, later, last;
    std::vector<std::pair<int64_t, RowKernels>> parts;  // by packed width of the part
  };

  void PlaceParts(const MatrixShape& shape);
  // Row `column` of W in the matrix's numbers, [packed_depth], and its scale and sums.
  void ConvertColumn(int64_t column, const float* weights, char* out);
  void QuantiseColumn(int64_t column, const float* weights, int8_t* out);
  absl::Status MakeKernels(KernelPath path, int64_t ldc);
  // c [rows, width of the set] = a times a panel of that width.
  void MultiplyPanel(const KernelSet& set, const char* a, int64_t rows, const char* panel,
                     float* c) const;
  // Columns [column, column + count) of a block, whose weights lie in panels_, into products_.
  void KeepProducts(size_t block, int64_t column, int64_t count);
  const char* PanelAt(const Block& block, int64_t packed_row) const;
  // C of int8 from s32 to f32. `sums` are those of the depth that was multiplied: [columns].
  void Dequantise(const Block& block, const TileRows& rows, const int32_t* sums, float* c) const;

  TileType type_ = TileType::kF32;
  int64_t columns_ = 0;
  int64_t depth_ = 0;
  int64_t packed_depth_ = 0;
  int64_t ldc_ = 0;
  std::vector<Part> parts_;
  std::vector<Block> blocks_;
  std::vector<size_t> kernel_set_;  // of each block
  std::vector<KernelSet> kernel_sets_;
  std::vector<float> bias_;
  std::vector<float> column_scales_;  // int8: [columns]
  std::vector<int32_t> column_sums_;  // int8: [columns] of the 8-bit numbers
  std::vector<int32_t> part_sums_;    // int8: [parts, columns]
  MappedBytes panels_;

  // See KeepProductsOf.
  const float* product_rows_ = nullptr;  // [product_count_, depth]
  int64_t product_count_ = 0;            // 0: the weights are kept
  std::vector<float> products_;          // [product_count_, columns]
};

// Kernels for rows 1…kTileRows of C [rows, n] (+)= A [rows, k] B [k, n]; index rows - 1.
absl::StatusOr<std::vector<std::shared_ptr<const TileKernel>>> MakeRowKernels(KernelPath path,
                                                                              TileShape shape);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_PACKED_MATRIX_H_
