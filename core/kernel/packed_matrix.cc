// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/packed_matrix.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "core/kernel/quantise.h"
#include "core/kernel/vector_ops.h"

namespace headwise {
namespace {

// Longest sum of one kernel call. A panel of 1024 x 64 floats takes 256 KiB; longer ones would push
// the tile of A out of the second-level cache.
constexpr int64_t kChunk = 1024;
static_assert(kChunk <= kMaxExactDepth);

// A group of a panel's interleaved rows is one of these in every type: one f32, two bf16, four s8.
using Group = uint32_t;
constexpr int64_t kGroupBytes = sizeof(Group);

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<const TileKernel>>> MakeRowKernels(KernelPath path,
                                                                              TileShape shape) {
  std::vector<std::shared_ptr<const TileKernel>> kernels;
  for (int64_t rows = 1; rows <= kTileRows; ++rows) {
    shape.m = rows;
    absl::StatusOr<std::shared_ptr<const TileKernel>> kernel = GetTileKernel(path, shape);
    if (!kernel.ok()) return kernel.status();
    kernels.push_back(*std::move(kernel));
  }
  return kernels;
}

absl::StatusOr<PackedMatrix> PackedMatrix::Prepare(KernelPath path, TileType type,
                                                   absl::Span<const float> bias,
                                                   const MatrixShape& shape, int64_t ldc) {
  PackedMatrix packed;
  packed.type_ = type;
  packed.columns_ = shape.columns;
  packed.depth_ = shape.depth;
  packed.ldc_ = ldc;
  packed.bias_.assign(bias.begin(), bias.end());
  packed.PlaceParts(shape);
  packed.panels_ = MappedBytes(shape.columns * packed.packed_depth_ * ElementBytes(type));
  if (type == TileType::kU8S8) {
    packed.column_scales_.resize(static_cast<size_t>(shape.columns));
    packed.column_sums_.resize(static_cast<size_t>(shape.columns));
    packed.part_sums_.resize(packed.parts_.size() * static_cast<size_t>(shape.columns));
  }
  int64_t column = 0;
  for (const int64_t width : shape.widths) {
    packed.blocks_.push_back({column, width, column * packed.packed_depth_});
    column += width;
  }
  if (absl::Status made = packed.MakeKernels(path, ldc); !made.ok()) return made;
  return packed;
}

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(KernelPath path, TileType type,
                                                absl::Span<const float> weights,
                                                absl::Span<const float> bias,
                                                const MatrixShape& shape, int64_t ldc) {
  absl::StatusOr<PackedMatrix> packed = Prepare(path, type, bias, shape, ldc);
  if (packed.ok()) packed->PackColumns(0, shape.columns, weights.data());
  return packed;
}

void PackedMatrix::PlaceParts(const MatrixShape& shape) {
  const int64_t group = Interleave(type_);
  std::vector<int64_t> widths(shape.parts.begin(), shape.parts.end());
  if (widths.empty()) widths.push_back(shape.depth);
  int64_t begin = 0;
  for (const int64_t width : widths) {
    parts_.push_back({begin, width, packed_depth_, RoundUp(width, group)});
    begin += width;
    packed_depth_ += parts_.back().packed_width;
  }
}

// A panel is the transposed of its columns, group by group. So the columns are turned into the
// panel's numbers row by row, in order, and one transposition writes whole lines of the panel:
// element by element, each of them would be touched once for every column.
void PackedMatrix::PackColumns(int64_t first, int64_t count, const float* weights) {
  constexpr int64_t kColumnsAtOnce = 64;
  const int64_t row_bytes = packed_depth_ * ElementBytes(type_);
  const int64_t groups = row_bytes / kGroupBytes;
  std::vector<char> numbers(
      static_cast<size_t>(type_ == TileType::kF32 ? 0 : kColumnsAtOnce * row_bytes));
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    const int64_t end = std::min(first + count, block.column + block.width);
    int64_t column = std::max(first, block.column);
    for (int64_t taken = 0; column < end; column += taken) {
      taken = std::min(end - column, kColumnsAtOnce);
      const float* source = weights + (column - first) * depth_;
      for (int64_t i = 0; i < taken && type_ != TileType::kF32; ++i) {
        ConvertColumn(column + i, source + i * depth_, numbers.data() + i * row_bytes);
      }
      Group* panel = panels_.as<Group>();
      if (product_count_ == 0) panel += block.offset * ElementBytes(type_) / kGroupBytes;
      Transpose32(type_ == TileType::kF32 ? static_cast<const void*>(source) : numbers.data(),
                  groups, taken, groups, panel + (column - block.column), block.width);
      if (product_count_ > 0) KeepProducts(b, column, taken);
    }
  }
}

void PackedMatrix::ConvertColumn(int64_t column, const float* weights, char* out) {
  if (type_ == TileType::kU8S8) {
    return QuantiseColumn(column, weights, reinterpret_cast<int8_t*>(out));
  }
  // What fills a part up was zero from the start and stays so.
  for (const Part& part : parts_) {
    ToBf16(weights + part.begin, part.width, reinterpret_cast<uint16_t*>(out) + part.packed);
  }
}

void PackedMatrix::QuantiseColumn(int64_t column, const float* weights, int8_t* out) {
  const size_t at = static_cast<size_t>(column);
  const float scale = QuantiseScale(LargestMagnitude(weights, depth_));
  column_scales_[at] = scale;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    int8_t* const steps = out + part.packed;
    QuantiseRow(weights + part.begin, scale, part.width, reinterpret_cast<uint8_t*>(steps));
    int32_t sum = 0;
    for (int64_t k = 0; k < part.width; ++k) {
      // Without the offset of 128 that rows have: its bit is the sign's.
      steps[k] = static_cast<int8_t>(static_cast<uint8_t>(steps[k]) ^ 0x80u);
      sum += steps[k];
    }
    part_sums_[p * static_cast<size_t>(columns_) + at] = sum;
    column_sums_[at] += sum;
  }
}

absl::Status PackedMatrix::MakeKernels(KernelPath path, int64_t ldc) {
  for (const Block& block : blocks_) {
    const auto known = std::find_if(kernel_sets_.begin(), kernel_sets_.end(),
                                    [&](const KernelSet& set) { return set.width == block.width; });
    kernel_set_.push_back(static_cast<size_t>(known - kernel_sets_.begin()));
    if (known != kernel_sets_.end()) continue;
    KernelSet set;
    set.width = block.width;
    const auto make = [&](int64_t depth, bool accumulate, RowKernels* kernels) -> absl::Status {
      auto made = MakeRowKernels(path, {.type = type_,
                                        .n = block.width,
                                        .k = depth,
                                        .lda = packed_depth_,
                                        .ldb = block.width,
                                        .ldc = ldc,
                                        .accumulate = accumulate});
      if (!made.ok()) return made.status();
      *kernels = *std::move(made);
      return absl::OkStatus();
    };
    const int64_t rest = packed_depth_ % kChunk;
    absl::Status status = make(std::min(packed_depth_, kChunk), false, &set.first);
    if (status.ok() && packed_depth_ >= 2 * kChunk) status = make(kChunk, true, &set.later);
    if (status.ok() && packed_depth_ > kChunk && rest > 0) status = make(rest, true, &set.last);
    for (const Part& part : parts_) {
      const bool made = std::any_of(set.parts.begin(), set.parts.end(), [&](const auto& entry) {
        return entry.first == part.packed_width;
      });
      if (!status.ok() || parts_.size() == 1 || made) continue;
      set.parts.emplace_back(part.packed_width, RowKernels());
      status = make(part.packed_width, false, &set.parts.back().second);
    }
    if (!status.ok()) return status;
    kernel_sets_.push_back(std::move(set));
  }
  return absl::OkStatus();
}

TileRows PackedMatrix::MakeRows(const float* in, int64_t rows, const float* scale_rows,
                                RowScratch* scratch) const {
  if (type_ == TileType::kF32) return {in, nullptr, rows};
  const size_t row_bytes = static_cast<size_t>(packed_depth_ * ElementBytes(type_));
  char* out = scratch->numbers.Reserve<char>(rows * static_cast<int64_t>(row_bytes));
  for (int64_t i = 0; i < rows; ++i, out += row_bytes) {
    const float* row = in + i * depth_;
    float scale = 0.0f;
    if (type_ == TileType::kU8S8) {
      scale = QuantiseScale(
          LargestMagnitude(scale_rows == nullptr ? row : scale_rows + i * depth_, depth_));
      scratch->scales[i] = scale;
    }
    for (const Part& part : parts_) {
      const size_t padding = static_cast<size_t>(part.packed_width - part.width);
      if (type_ == TileType::kBf16) {
        auto* place = reinterpret_cast<uint16_t*>(out) + part.packed;
        ToBf16(row + part.begin, part.width, place);
        std::fill_n(place + part.width, padding, uint16_t{0});
      } else {
        auto* place = reinterpret_cast<uint8_t*>(out) + part.packed;
        QuantiseRow(row + part.begin, scale, part.width, place);
        std::fill_n(place + part.width, padding, uint8_t{128});
      }
    }
  }
  return {out - rows * static_cast<int64_t>(row_bytes), scratch->scales, rows};
}

const char* PackedMatrix::PanelAt(const Block& block, int64_t packed_row) const {
  return panels_.as<char>() + (block.offset + packed_row * block.width) * ElementBytes(type_);
}

void PackedMatrix::KeepProductsOf(const float* rows, int64_t count) {
  CHECK(type_ == TileType::kF32 && count <= kTileRows);
  product_rows_ = rows;
  product_count_ = count;
  products_.resize(static_cast<size_t>(count * columns_));
  int64_t widest = 0;
  for (const Block& block : blocks_) widest = std::max(widest, block.width);
  panels_ = MappedBytes(widest * packed_depth_ * ElementBytes(type_));
}

void PackedMatrix::KeepProducts(size_t block, int64_t column, int64_t count) {
  std::vector<float> tile(static_cast<size_t>(product_count_ * ldc_));
  MultiplyPanel(kernel_sets_[kernel_set_[block]], reinterpret_cast<const char*>(product_rows_),
                product_count_, panels_.as<char>(), tile.data());
  const float* from = tile.data() + (column - blocks_[block].column);
  for (int64_t i = 0; i < product_count_; ++i) {
    std::copy_n(from + i * ldc_, count, products_.data() + i * columns_ + column);
  }
}

void PackedMatrix::MultiplyPanel(const KernelSet& set, const char* a, int64_t rows,
                                 const char* panel, float* c) const {
  const size_t row_index = static_cast<size_t>(rows - 1);
  set.first[row_index]->Run(a, panel, c);
  for (int64_t k = kChunk; k < packed_depth_; k += kChunk) {
    const RowKernels& kernels = k + kChunk <= packed_depth_ ? set.later : set.last;
    kernels[row_index]->Run(a + k * ElementBytes(type_),
                            panel + k * set.width * ElementBytes(type_), c);
  }
}

void PackedMatrix::MultiplyBlock(size_t block, const TileRows& rows, float* c) const {
  const Block& columns = blocks_[block];
  if (product_count_ > 0) {
    CHECK_EQ(rows.rows, product_count_);
    for (int64_t i = 0; i < rows.rows; ++i) {
      std::copy_n(products_.data() + i * columns_ + columns.column, columns.width, c + i * ldc_);
    }
    return;
  }
  MultiplyPanel(kernel_sets_[kernel_set_[block]], static_cast<const char*>(rows.data), rows.rows,
                PanelAt(columns, 0), c);
  if (type_ == TileType::kU8S8) Dequantise(columns, rows, column_sums_.data(), c);
}

void PackedMatrix::MultiplyPart(size_t block, int64_t part, const TileRows& rows, float* c) const {
  if (parts_.size() == 1) return MultiplyBlock(block, rows, c);
  const Part& stretch = parts_[static_cast<size_t>(part)];
  const Block& columns = blocks_[block];
  const KernelSet& set = kernel_sets_[kernel_set_[block]];
  const auto kernels = std::find_if(set.parts.begin(), set.parts.end(), [&](const auto& entry) {
    return entry.first == stretch.packed_width;
  });
  kernels->second[static_cast<size_t>(rows.rows - 1)]->Run(
      static_cast<const char*>(rows.data) + stretch.packed * ElementBytes(type_),
      PanelAt(columns, stretch.packed), c);
  if (type_ == TileType::kU8S8) Dequantise(columns, rows, part_sums_.data() + part * columns_, c);
}

void PackedMatrix::Dequantise(const Block& block, const TileRows& rows, const int32_t* sums,
                              float* c) const {
  for (int64_t i = 0; i < rows.rows; ++i) {
    DequantiseRow(rows.scales[i], column_scales_.data() + block.column, sums + block.column,
                  block.width, c + i * ldc_);
  }
}

}  // namespace headwise
