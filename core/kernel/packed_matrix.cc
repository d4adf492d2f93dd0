// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/packed_matrix.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

namespace headwise {
namespace {

// Longest sum of one kernel call. A panel of 1024 x 64 floats takes 256 KiB; longer ones would push
// the tile of A out of the second-level cache.
constexpr int64_t kChunk = 1024;

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

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(KernelPath path, absl::Span<const float> weights,
                                                absl::Span<const float> bias, int64_t columns,
                                                int64_t depth, absl::Span<const int64_t> widths,
                                                int64_t lda, int64_t ldc) {
  PackedMatrix packed;
  packed.columns_ = columns;
  packed.depth_ = depth;
  packed.bias_.assign(bias.begin(), bias.end());
  packed.panels_ = MappedFloats(columns * depth);
  int64_t column = 0;
  for (const int64_t width : widths) {
    const Block block{column, width, column * depth};
    float* panel = packed.panels_.data() + block.offset;
    for (int64_t c = 0; c < width; ++c) {
      const float* source = weights.data() + (column + c) * depth;
      for (int64_t k = 0; k < depth; ++k) panel[k * width + c] = source[k];
    }
    packed.blocks_.push_back(block);
    packed.max_width_ = std::max(packed.max_width_, width);
    column += width;
  }
  if (absl::Status made = packed.MakeKernels(path, lda, ldc); !made.ok()) return made;
  return packed;
}

absl::Status PackedMatrix::MakeKernels(KernelPath path, int64_t lda, int64_t ldc) {
  for (const Block& block : blocks_) {
    const auto known = std::find_if(kernel_sets_.begin(), kernel_sets_.end(),
                                    [&](const KernelSet& set) { return set.width == block.width; });
    kernel_set_.push_back(static_cast<size_t>(known - kernel_sets_.begin()));
    if (known != kernel_sets_.end()) continue;
    KernelSet set;
    set.width = block.width;
    const auto make = [&](int64_t depth, bool accumulate, auto* kernels) -> absl::Status {
      auto made = MakeRowKernels(path, {.n = block.width,
                                        .k = depth,
                                        .lda = lda,
                                        .ldb = block.width,
                                        .ldc = ldc,
                                        .accumulate = accumulate});
      if (!made.ok()) return made.status();
      *kernels = *std::move(made);
      return absl::OkStatus();
    };
    const int64_t rest = depth_ % kChunk;
    absl::Status status = make(std::min(depth_, kChunk), false, &set.first);
    if (status.ok() && depth_ >= 2 * kChunk) status = make(kChunk, true, &set.later);
    if (status.ok() && depth_ > kChunk && rest > 0) status = make(rest, true, &set.last);
    if (!status.ok()) return status;
    kernel_sets_.push_back(std::move(set));
  }
  return absl::OkStatus();
}

void PackedMatrix::MultiplyBlock(size_t block, const float* a, int64_t rows, float* c) const {
  const KernelSet& set = kernel_sets_[kernel_set_[block]];
  const size_t row_index = static_cast<size_t>(rows - 1);
  set.first[row_index]->Run(a, PanelRows(block, 0), c);
  for (int64_t k = kChunk; k < depth_; k += kChunk) {
    const bool whole = k + kChunk <= depth_;
    (whole ? set.later : set.last)[row_index]->Run(a + k, PanelRows(block, k), c);
  }
}

}  // namespace headwise
