// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BASE_CLOCK_H_
#define HEADWISE_CORE_BASE_CLOCK_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace headwise {

// Where time comes from, so that tests can set it. Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // The system's clock; lives for the whole process.
  static Clock* System();
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_CLOCK_H_
