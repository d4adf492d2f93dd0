// SPDX-License-Identifier: Apache-2.0
#include "server/request_memory.h"

#include "absl/strings/str_cat.h"
#include "core/base/refusal.h"

namespace headwise {

absl::Status RequestMemory::Hold::Take(RequestMemory* memory, int64_t bytes) {
  if (bytes > memory->budget_bytes_) {
    return Refuse(Refusal::kTooLarge,
                  absl::StrCat("request: at most ", memory->budget_bytes_,
                               " bytes can ever be in memory (--request-budget-bytes); was ", bytes,
                               " of a message or its answer"));
  }
  const int64_t together = memory->used_bytes_.fetch_add(bytes) + bytes;
  if (together > memory->budget_bytes_) {
    memory->used_bytes_.fetch_sub(bytes);
    return Refuse(Refusal::kRequestBytes,
                  absl::StrCat("requests: at most ", memory->budget_bytes_,
                               " bytes in memory (--request-budget-bytes), retry later; was ",
                               together - bytes, " and ", bytes, " more"));
  }
  memory_ = memory;
  bytes_ += bytes;
  return absl::OkStatus();
}

void RequestMemory::Hold::Settle(int64_t bytes) {
  if (memory_ == nullptr) return;
  memory_->used_bytes_.fetch_add(bytes - bytes_);
  bytes_ = bytes;
}

void RequestMemory::Hold::Release() {
  if (memory_ != nullptr) memory_->used_bytes_.fetch_sub(bytes_);
  memory_ = nullptr;
  bytes_ = 0;
}

}  // namespace headwise
