// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_TESTS_SUPPORT_FAKE_CLOCK_H_
#define HEADWISE_TESTS_SUPPORT_FAKE_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace headwise {

// Time that moves when the test says so. Thread-safe.
class FakeClock : public Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixMicros(now_us_.load()); }
  void Advance(absl::Duration by) { now_us_.fetch_add(absl::ToInt64Microseconds(by)); }

 private:
  std::atomic<int64_t> now_us_{1'000'000'000};
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_FAKE_CLOCK_H_
