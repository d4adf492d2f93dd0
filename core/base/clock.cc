// SPDX-License-Identifier: Apache-2.0
#include "core/base/clock.h"

namespace headwise {
namespace {

class SystemClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace

Clock* Clock::System() {
  static SystemClock* const clock =
      new SystemClock;  // never destroyed: threads may outlive statics
  return clock;
}

}  // namespace headwise
