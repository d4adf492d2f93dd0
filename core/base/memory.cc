// SPDX-License-Identifier: Apache-2.0
#include "core/base/memory.h"

#include <sys/mman.h>

#include <utility>

#include "absl/log/check.h"

namespace headwise {
namespace {

// From here on huge pages pay: fewer TLB misses while a product streams over weights.
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

MappedFloats::MappedFloats(int64_t count) : count_(count) {
  if (count == 0) return;
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(address != MAP_FAILED) << "no memory for " << bytes << " bytes";
  if (bytes >= kHugePageBytes) madvise(address, bytes, MADV_HUGEPAGE);  // a hint: failing is fine
  data_ = static_cast<float*>(address);
}

MappedFloats::~MappedFloats() { Release(); }

MappedFloats::MappedFloats(MappedFloats&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}

MappedFloats& MappedFloats::operator=(MappedFloats&& other) noexcept {
  if (this != &other) {
    Release();
    data_ = std::exchange(other.data_, nullptr);
    count_ = std::exchange(other.count_, 0);
  }
  return *this;
}

void MappedFloats::Release() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(count_) * sizeof(float));
}

}  // namespace headwise
