// SPDX-License-Identifier: Apache-2.0
// Tile products of one head's attention, compiled once for its widths.
#ifndef HEADWISE_CORE_KERNEL_ATTEND_KERNELS_H_
#define HEADWISE_CORE_KERNEL_ATTEND_KERNELS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/kernel/tile_kernel.h"

namespace headwise {

// A tile: kQueryTile queries against kKeyBlock keys, 64 KiB of scores, in the second-level cache.
// Tried in f32 with dk = dv = 64: 64 x 256 and 64 x 512 are equal, smaller blocks lose.
inline constexpr int64_t kQueryTile = 64;
inline constexpr int64_t kKeyBlock = 256;
inline constexpr int64_t kKeyStep = 16;  // key blocks are padded to this many columns

constexpr int64_t PadKeys(int64_t keys) { return (keys + kKeyStep - 1) / kKeyStep * kKeyStep; }

// Kernels of one (dk, dv). Rows are rounded up to a compiled height: the rows beyond are computed
// from whatever lies there and never read (rows of a product don't touch each other).
struct AttendKernels {
  static constexpr int kHeights = 11;
  static constexpr std::array<int64_t, kHeights> kRows = {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64};
  static constexpr int kWidths = static_cast<int>(kKeyBlock / kKeyStep);

  // Index into the tables for `rows` <= kQueryTile.
  static int Height(int64_t rows);

  // [height][padded keys / kKeyStep - 1].
  // scores [rows, keys] = q [rows, dk] k^T [dk, keys]
  std::array<std::array<std::shared_ptr<const TileKernel>, kWidths>, kHeights> scores;
  // output [rows, dv] += p [rows, keys] v [keys, dv]
  std::array<std::array<std::shared_ptr<const TileKernel>, kWidths>, kHeights> output;
};

// The set for (dk, dv), shared by all layers that use it. Thread-safe. About 352 kernels, 15 ms.
absl::StatusOr<std::shared_ptr<const AttendKernels>> GetAttendKernels(KernelPath path, int64_t dk,
                                                                      int64_t dv);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_ATTEND_KERNELS_H_
