// SPDX-License-Identifier: Apache-2.0
// Sizes of the tiles that projections and attention work in. ARCHITECTURE.md says how they were
// found.
#ifndef HEADWISE_CORE_KERNEL_TILE_SIZES_H_
#define HEADWISE_CORE_KERNEL_TILE_SIZES_H_

#include <cstdint>

namespace headwise {

// Rows of a projection's tile: 64 rows against a panel of at most 1024 x 64 weights keep both in
// a 1 MiB second-level cache.
inline constexpr int64_t kTileRows = 64;

// Rows of a projection's tile are a multiple of this many floats apart: whole vectors.
inline constexpr int64_t kTileStep = 16;

// Attention: kQueryTile queries against kKeyBlock keys are 64 KiB of f32 scores, in the
// second-level cache.
inline constexpr int64_t kQueryTile = 64;
inline constexpr int64_t kKeyBlock = 512;

// Numbers from a row of a score tile to the next. Not a multiple of 1 KiB: rows that are share few
// sets of the first-level cache.
inline constexpr int64_t kScoreStride = kKeyBlock + 16;

// Keys lie transposed in panels of this many columns, the last one of a sequence narrower.
inline constexpr int64_t kKeyPanel = 64;

// Keys of a sequence are padded to a multiple of this: whole vectors.
inline constexpr int64_t kKeyStep = 16;

// Features of v lie in rows of a multiple of this: whole vectors. Of 58 columns the f32 microkernel
// makes a tenth less in the same time than of 64 with 6 in vain.
inline constexpr int64_t kFeatureStep = 16;

// So many features beyond whole vectors, or fewer, lie apart, one row each: 66 would take the
// microkernel as long as 80.
inline constexpr int64_t kFewFeatures = 4;

constexpr int64_t RoundDown(int64_t value, int64_t step) { return value / step * step; }
constexpr int64_t RoundUp(int64_t value, int64_t step) { return RoundDown(value + step - 1, step); }
constexpr int64_t PadKeys(int64_t keys) { return RoundUp(keys, kKeyStep); }
constexpr int64_t PadFeatures(int64_t dv) { return RoundUp(dv, kFeatureStep); }

// Of dv features, those that lie apart; and the width of the rows of the others, filled up.
constexpr int64_t FeaturesApart(int64_t dv) {
  const int64_t beyond = dv % kFeatureStep;
  return dv > kFeatureStep && beyond <= kFewFeatures ? beyond : 0;
}
constexpr int64_t FeaturesInRows(int64_t dv) { return PadFeatures(dv - FeaturesApart(dv)); }

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_TILE_SIZES_H_
