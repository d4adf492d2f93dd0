// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/rope.h"

#include <cmath>

namespace headwise {
namespace {

// Positions kept ready: 2048 x 64 features x 4 bytes = 512 KiB a layer. Others are computed when
// met.
constexpr int64_t kTablePositions = 2048;

}  // namespace

RopeTable::RopeTable(const RopeSpec& spec, int64_t dims)
    : layout_(spec.layout), dims_(dims), inv_freq_(static_cast<size_t>(dims / 2)) {
  for (int64_t i = 0; i < dims / 2; ++i) {
    inv_freq_[static_cast<size_t>(i)] =
        std::pow(spec.base, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
  }
  table_.resize(static_cast<size_t>(kTablePositions * dims));
  for (int64_t p = 0; p < kTablePositions; ++p) Angles(p, table_.data() + p * dims);
}

void RopeTable::Angles(int64_t position, float* cos_sin) const {
  const int64_t half = dims_ / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * inv_freq_[static_cast<size_t>(i)];
    cos_sin[i] = static_cast<float>(std::cos(angle));
    cos_sin[half + i] = static_cast<float>(std::sin(angle));
  }
}

void RopeTable::Rotate(int64_t position, float* scratch, float* row) const {
  const float* angles = scratch;
  if (position >= 0 && position < kTablePositions) {
    angles = table_.data() + position * dims_;
  } else {
    Angles(position, scratch);
  }
  const int64_t half = dims_ / 2;
  const int64_t step = layout_ == RopeLayout::kHalf ? 1 : 2;
  const int64_t partner = layout_ == RopeLayout::kHalf ? half : 1;
  for (int64_t i = 0; i < half; ++i) {
    const float x = row[i * step];
    const float y = row[i * step + partner];
    row[i * step] = x * angles[i] - y * angles[half + i];
    row[i * step + partner] = y * angles[i] + x * angles[half + i];
  }
}

}  // namespace headwise
