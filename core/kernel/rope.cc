// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/rope.h"

#include <cmath>

namespace headwise {
namespace {

// Positions kept ready: 2048 x 64 features x 4 bytes = 512 KiB a layer. Others are computed for the
// pass that meets them.
constexpr int64_t kTablePositions = 2048;

}  // namespace

RopeTable::RopeTable(const RopeSpec& spec) : spec_(spec) {
  table_.resize(static_cast<size_t>(kTablePositions * row_floats()));
  const RopeFrequencies frequencies = Frequencies(/*length=*/1);
  for (int64_t p = 0; p < kTablePositions; ++p) {
    Compute(frequencies, p, table_.data() + p * row_floats());
  }
}

bool RopeTable::Covers(int64_t lowest, int64_t highest, int64_t length) const {
  if (lowest < 0 || highest >= kTablePositions) return false;
  // The table is that of short sequences. Both scalings that look at the length leave sequences up
  // to the trained one alone.
  return !RopeDependsOnLength(spec_) || static_cast<double>(length) <= spec_.original_max_positions;
}

void RopeTable::Compute(const RopeFrequencies& frequencies, int64_t position, float* out) const {
  const int64_t half = dims() / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(position) * frequencies.inv_freq[static_cast<size_t>(i)];
    const float cosine = static_cast<float>(std::cos(angle) * frequencies.attention_factor);
    const float sine = static_cast<float>(std::sin(angle) * frequencies.attention_factor);
    if (layout() == RopeLayout::kInterleaved) {
      out[2 * i] = out[2 * i + 1] = cosine;
      out[dims() + 2 * i] = -sine;
      out[dims() + 2 * i + 1] = sine;
    } else {
      out[i] = cosine;
      out[half + i] = sine;
    }
  }
}

}  // namespace headwise
