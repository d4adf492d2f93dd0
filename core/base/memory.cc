// SPDX-License-Identifier: Apache-2.0
#include "core/base/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <new>
#include <utility>

namespace headwise {
namespace {

// From here on huge pages pay: fewer TLB misses while a product streams over weights.
constexpr size_t kHugePageBytes = size_t{2} << 20;

std::atomic<bool (*)()> fault{nullptr};

}  // namespace

void MappedBytes::SetFault(bool (*refuses)()) { fault.store(refuses); }

MappedBytes::MappedBytes(int64_t size) {
  if (size == 0) return;
  const size_t bytes = static_cast<size_t>(size);
  bool (*const refuses)() = fault.load(std::memory_order_relaxed);
  if (refuses != nullptr && refuses()) throw std::bad_alloc();
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_ = data;
  size_ = size;
  if (bytes >= kHugePageBytes) madvise(data_, bytes, MADV_HUGEPAGE);  // a hint: failing is fine
}

MappedBytes::~MappedBytes() { Release(); }

MappedBytes::MappedBytes(MappedBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedBytes& MappedBytes::operator=(MappedBytes&& other) noexcept {
  if (this != &other) {
    Release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void MappedBytes::Release() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

}  // namespace headwise
