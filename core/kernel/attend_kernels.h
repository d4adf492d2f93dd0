// SPDX-License-Identifier: Apache-2.0
// Tile products of one head's attention, compiled once for its widths.
#ifndef HEADWISE_CORE_KERNEL_ATTEND_KERNELS_H_
#define HEADWISE_CORE_KERNEL_ATTEND_KERNELS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/kernel/tile_kernel.h"
#include "core/kernel/tile_sizes.h"

namespace headwise {

// Kernels of one (type, dk, dv). Rows are rounded up to a compiled height: the rows beyond are
// computed from whatever lies there and never read (rows of a product don't touch each other).
// Immutable; thread-safe.
class AttendKernels {
 public:
  static constexpr int kHeights = 14;
  static constexpr std::array<int64_t, kHeights> kRows = {1,  2,  4,  8,  12, 16, 20,
                                                          24, 28, 32, 40, 48, 56, 64};
  // What the keys of a product with v are a multiple of, beyond whole panels.
  static constexpr int64_t kRestStep = 4;

  // `type` is kF32 or kBf16. UNIMPLEMENTED if `path` can't run here.
  static absl::StatusOr<std::shared_ptr<const AttendKernels>> Create(KernelPath path, TileType type,
                                                                     int64_t dk, int64_t dv);

  // Index into the tables for `rows` <= kQueryTile.
  static size_t Height(int64_t rows);

  // scores [rows, keys] = q [rows, dk] k^T [dk, keys] from a panel of `panel` keys; both are
  // multiples of kKeyStep, keys <= panel <= kKeyPanel. Rows of scores are kScoreStride apart.
  const TileKernel& scores(size_t height, int64_t panel, int64_t keys) const {
    return *scores_[height][static_cast<size_t>(panel / kKeyStep - 1)]
                   [static_cast<size_t>(keys / kKeyStep - 1)];
  }

  // output [rows, features] += p [rows, keys] v [keys, features], features FeaturesInRows(dv); keys
  // a multiple of kKeyPanel, <= kKeyBlock, or a multiple of kRestStep below kKeyPanel: what a block
  // has beyond its last whole panel is a product of its own. Rows of p are kScoreStride apart,
  // those of the output PadFeatures(dv).
  const TileKernel& output(size_t height, int64_t keys) const {
    return keys < kKeyPanel ? *output_rest_[height][static_cast<size_t>(keys / kRestStep - 1)]
                            : *output_[height][static_cast<size_t>(keys / kKeyPanel - 1)];
  }

 private:
  static constexpr size_t kPanelWidths = static_cast<size_t>(kKeyPanel / kKeyStep);
  static constexpr size_t kRestWidths = static_cast<size_t>(kKeyPanel / kRestStep - 1);
  static constexpr size_t kBlockWidths = static_cast<size_t>(kKeyBlock / kKeyPanel);
  template <size_t kCount>
  using Kernels = std::array<std::shared_ptr<const TileKernel>, kCount>;

  std::array<std::array<Kernels<kPanelWidths>, kPanelWidths>, kHeights> scores_;
  std::array<Kernels<kBlockWidths>, kHeights> output_;
  std::array<Kernels<kRestWidths>, kHeights> output_rest_;
};

// The set for (path, type, dk, dv), shared by all layers that use it. Thread-safe. About 460
// kernels, 14 ms, 9 MB.
absl::StatusOr<std::shared_ptr<const AttendKernels>> GetAttendKernels(KernelPath path,
                                                                      TileType type, int64_t dk,
                                                                      int64_t dv);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_ATTEND_KERNELS_H_
