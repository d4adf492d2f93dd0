// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_REQUEST_MEMORY_H_
#define HEADWISE_SERVER_REQUEST_MEMORY_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace headwise {

// Bytes of the request messages and answers that are in memory, under one budget. Thread-safe.
class RequestMemory {
 public:
  // The part of one call or request; given back at its end. Not thread-safe.
  class Hold {
   public:
    Hold() = default;
    ~Hold() { Release(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    // Adds to what is held. RESOURCE_EXHAUSTED, and nothing is added, if the budget hasn't room.
    absl::Status Take(RequestMemory* memory, int64_t bytes);
    // Holds exactly that much from now on, whatever the budget. After Take.
    void Settle(int64_t bytes);
    void Release();
    int64_t bytes() const { return bytes_; }

   private:
    RequestMemory* memory_ = nullptr;
    int64_t bytes_ = 0;
  };

  explicit RequestMemory(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  int64_t used_bytes() const { return used_bytes_.load(); }

 private:
  const int64_t budget_bytes_;
  std::atomic<int64_t> used_bytes_{0};
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_REQUEST_MEMORY_H_
