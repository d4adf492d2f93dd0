// SPDX-License-Identifier: Apache-2.0
// Memory that the next tile reads, asked for while this one computes.
#ifndef HEADWISE_CORE_KERNEL_LINES_AHEAD_H_
#define HEADWISE_CORE_KERNEL_LINES_AHEAD_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace headwise {

// Stretches of memory, handed out to the second-level cache a few lines at a time: a core waits on
// some two dozen misses at once, so asking for a tile in one go would stop it as the misses
// themselves would. A hint; results don't depend on it. Not thread-safe: each worker has its own.
class LinesAhead {
 public:
  // Forgets what is left.
  void Clear() {
    next_ = count_ = 0;
    room_ = kMostBytes;
  }

  // `bytes` at `data`; what exceeds the room is left out.
  void Want(const void* data, int64_t bytes) {
    bytes = std::min(bytes, room_);
    if (count_ == stretches_.size() || bytes <= 0) return;
    room_ -= bytes;
    const char* begin = static_cast<const char*>(data);
    stretches_[count_++] = {begin, begin + bytes};
  }

  // Asks for the next `lines` lines.
  void Ask(int64_t lines) {
    while (lines > 0 && next_ < count_) {
      Stretch& stretch = stretches_[next_];
      for (; lines > 0 && stretch.begin < stretch.end; --lines, stretch.begin += kLineBytes) {
        __builtin_prefetch(stretch.begin, /*rw=*/0, /*locality=*/2);
      }
      if (stretch.begin >= stretch.end) ++next_;
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  // A quarter of a second-level cache of 1 MiB: more would push out what this tile reads.
  static constexpr int64_t kMostBytes = 256 << 10;
  struct Stretch {
    const char* begin;
    const char* end;
  };

  std::array<Stretch, 4> stretches_ = {};
  size_t next_ = 0;
  size_t count_ = 0;
  int64_t room_ = kMostBytes;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_LINES_AHEAD_H_
