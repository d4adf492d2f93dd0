// SPDX-License-Identifier: Apache-2.0
#include "client/load/arrivals.h"

#include <cmath>
#include <utility>

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

OpenArrivals::OpenArrivals(RateSchedule schedule, bool poisson, uint64_t warmup, uint64_t seed)
    : Arrivals(ToNanos(schedule.seconds()), warmup),
      schedule_(std::move(schedule)),
      poisson_(poisson),
      warmup_calls_(warmup),
      random_(seed) {}

OpenArrivals::OpenArrivals(double rate, bool poisson, int64_t duration_ns, uint64_t warmup,
                           uint64_t seed)
    : OpenArrivals(RateSchedule::Constant(rate, static_cast<double>(duration_ns) / kNanosPerSecond),
                   poisson, warmup, seed) {}

std::optional<int64_t> OpenArrivals::PlannedNs() const {
  if (index() < warmup_calls_) return ToNanos(calls_ / schedule_.first_rate());
  const std::optional<double> in_window_s = schedule_.TimeOf(calls_ - warmup_until_);
  if (!in_window_s.has_value()) return std::nullopt;
  return ToNanos(warmup_until_ / schedule_.first_rate() + *in_window_s);
}

std::optional<int64_t> OpenArrivals::Peek() {
  const std::optional<int64_t> planned_ns = PlannedNs();
  if (planned_ns.has_value() && *planned_ns >= window_end_ns()) return std::nullopt;
  return planned_ns;
}

void OpenArrivals::Pop() {
  CountCall(PlannedNs().value_or(window_end_ns()));
  if (poisson_) {
    // 53 random bits in (0, 1]; the logarithm of 0 is never taken.
    const double uniform = (static_cast<double>(random_() >> 11) + 1) * 0x1p-53;
    calls_ -= std::log(uniform);
  } else {
    calls_ = static_cast<double>(index());  // no sum of gaps: errors don't pile up
  }
  if (index() == warmup_calls_) warmup_until_ = calls_;
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
