// SPDX-License-Identifier: Apache-2.0
// Memory for numbers: 64-byte aligned, never moved behind a reader's back.
#ifndef HEADWISE_CORE_BASE_MEMORY_H_
#define HEADWISE_CORE_BASE_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace headwise {

// Floats in an anonymous mapping of their own, so that freeing them gives the pages back to the
// system at once. Zero-filled. Movable, not copyable; as thread-safe as a plain array.
class MappedFloats {
 public:
  MappedFloats() = default;
  explicit MappedFloats(int64_t count);  // CHECK-fails if the system has no memory
  ~MappedFloats();
  MappedFloats(MappedFloats&& other) noexcept;
  MappedFloats& operator=(MappedFloats&& other) noexcept;

  float* data() { return data_; }
  const float* data() const { return data_; }
  int64_t size() const { return count_; }

 private:
  void Release();

  float* data_ = nullptr;
  int64_t count_ = 0;
};

// Scratch that grows and is reused from pass to pass. Contents are undefined after Reserve. A
// buffer grown for one huge request shrinks again: Trim gives memory beyond `keep` floats back.
// Not thread-safe.
class ScratchFloats {
 public:
  float* Reserve(int64_t count) {
    if (count > floats_.size()) {
      // The old pages go before the new ones come. Small buffers get room to grow into.
      floats_ = MappedFloats();
      floats_ = MappedFloats(std::max(count, kLeastFloats));
    }
    return floats_.data();
  }
  void Trim(int64_t keep) {
    if (floats_.size() > keep) floats_ = MappedFloats();
  }
  float* data() { return floats_.data(); }

 private:
  static constexpr int64_t kLeastFloats = 16384;

  MappedFloats floats_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_MEMORY_H_
