// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BASE_CANCEL_H_
#define HEADWISE_CORE_BASE_CANCEL_H_

#include <atomic>

namespace headwise {

// Set once by whoever asked, read between tasks by whoever computes. Thread-safe.
class CancelToken {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_{false};
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_CANCEL_H_
