// SPDX-License-Identifier: Apache-2.0
#include "client/load/arrivals.h"

#include <cmath>

namespace headwise::client {
namespace {

constexpr double kNanosPerSecond = 1e9;

int64_t ToNanos(double seconds) { return std::llround(seconds * kNanosPerSecond); }

}  // namespace

void Arrivals::CountCall(int64_t planned_ns) {
  if (index_ == warmup_) {
    begun_ = true;
    window_begin_ns_ = planned_ns;
  }
  ++index_;
}

OpenArrivals::OpenArrivals(double rate, bool poisson, int64_t duration_ns, uint64_t warmup,
                           uint64_t seed)
    : Arrivals(duration_ns, warmup), rate_(rate), poisson_(poisson), random_(seed) {}

std::optional<int64_t> OpenArrivals::Peek() {
  const int64_t planned_ns = ToNanos(planned_s_);
  if (planned_ns >= window_end_ns()) return std::nullopt;
  return planned_ns;
}

void OpenArrivals::Pop() {
  CountCall(ToNanos(planned_s_));
  if (poisson_) {
    // 53 random bits in (0, 1]; the logarithm of 0 is never taken.
    const double uniform = (static_cast<double>(random_() >> 11) + 1) * 0x1p-53;
    planned_s_ -= std::log(uniform) / rate_;
  } else {
    planned_s_ = static_cast<double>(index()) / rate_;  // no sum of gaps: errors don't pile up
  }
}

ClosedArrivals::ClosedArrivals(uint32_t callers, int64_t duration_ns, uint64_t warmup)
    : Arrivals(duration_ns, warmup), free_since_ns_(callers, 0) {}

std::optional<int64_t> ClosedArrivals::Peek() {
  if (free_since_ns_.empty() || free_since_ns_.front() >= window_end_ns()) return std::nullopt;
  return free_since_ns_.front();
}

void ClosedArrivals::Pop() {
  CountCall(free_since_ns_.front());
  free_since_ns_.pop_front();
}

}  // namespace headwise::client
