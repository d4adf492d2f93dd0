// SPDX-License-Identifier: Apache-2.0
// Memory for numbers: 64-byte aligned, never moved behind a reader's back.
#ifndef HEADWISE_CORE_BASE_MEMORY_H_
#define HEADWISE_CORE_BASE_MEMORY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace headwise {

// Bytes in an anonymous mapping of their own, so that freeing them gives the pages back to the
// system at once. Zero-filled. Movable, not copyable; as thread-safe as a plain array.
class MappedBytes {
 public:
  MappedBytes() = default;
  explicit MappedBytes(int64_t size);  // throws std::bad_alloc if the system has no memory
  ~MappedBytes();
  MappedBytes(MappedBytes&& other) noexcept;
  MappedBytes& operator=(MappedBytes&& other) noexcept;

  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }
  int64_t size() const { return size_; }

  // For tests: from now on every allocation of this process asks `refuses` first; true: it fails.
  // Null: none does.
  static void SetFault(bool (*refuses)());

 private:
  void Release();

  void* data_ = nullptr;
  int64_t size_ = 0;
};

// Scratch that grows and is reused from pass to pass. Contents are undefined after Reserve. A
// buffer grown for one huge request shrinks again: Trim gives memory beyond `keep` bytes back.
// Not thread-safe.
class Scratch {
 public:
  template <typename T>
  T* Reserve(int64_t count) {
    const int64_t size = count * static_cast<int64_t>(sizeof(T));
    if (size > bytes_.size()) {
      // The old pages go before the new ones come. Small buffers get room to grow into.
      Resize(0);
      Resize(std::max(size, kLeastBytes));
    }
    return bytes_.as<T>();
  }
  void Trim(int64_t keep) {
    if (bytes_.size() > keep) Resize(0);
  }

  Scratch() = default;
  ~Scratch() { Resize(0); }
  Scratch(Scratch&& other) noexcept = default;
  Scratch& operator=(Scratch&&) = delete;

  // Of all scratch in the process now. Thread-safe.
  static int64_t TotalBytes() { return total_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kLeastBytes = 65536;
  static inline std::atomic<int64_t> total_bytes_{0};

  void Resize(int64_t size) {
    const int64_t before = bytes_.size();
    bytes_ = MappedBytes(size);
    total_bytes_.fetch_add(size - before, std::memory_order_relaxed);
  }

  MappedBytes bytes_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_MEMORY_H_
