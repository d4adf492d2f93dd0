// SPDX-License-Identifier: Apache-2.0
// When calls are planned to be sent.
#ifndef HEADWISE_CLIENT_LOAD_ARRIVALS_H_
#define HEADWISE_CLIENT_LOAD_ARRIVALS_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <random>

#include "client/load/schedule.h"

namespace headwise::client {

// The planned send times of a run, in order. The first `warmup` calls come before the measured
// window, which begins at the next one's planned time and lasts the run's duration. Times are ns
// from the start of the run. Not thread-safe.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // Planned time of the next call; nullopt: none is planned now (the window is over, or every
  // caller of a closed loop waits for its answer).
  virtual std::optional<int64_t> Peek() = 0;
  virtual void Pop() = 0;  // that call has been sent
  virtual void Completed(int64_t done_ns) = 0;
  int64_t window_begin_ns() const { return window_begin_ns_; }
  // Far in the future until the window has begun.
  int64_t window_end_ns() const { return begun_ ? window_begin_ns_ + duration_ns_ : kNever; }

  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

 protected:
  Arrivals(int64_t duration_ns, uint64_t warmup) : duration_ns_(duration_ns), warmup_(warmup) {}
  // The call planned at `planned_ns` is being sent.
  void CountCall(int64_t planned_ns);
  uint64_t index() const { return index_; }  // of the next call

 private:
  const int64_t duration_ns_;
  const uint64_t warmup_;
  uint64_t index_ = 0;
  bool begun_ = false;
  int64_t window_begin_ns_ = 0;
};

// Open loop: a rate over time, whatever becomes of earlier calls. Constant gaps, or exponential
// ones (Poisson). The warm-up goes at the rate with which the schedule begins.
class OpenArrivals : public Arrivals {
 public:
  OpenArrivals(RateSchedule schedule, bool poisson, uint64_t warmup, uint64_t seed);
  OpenArrivals(double rate, bool poisson, int64_t duration_ns, uint64_t warmup, uint64_t seed);
  std::optional<int64_t> Peek() override;
  void Pop() override;
  void Completed(int64_t) override {}

 private:
  // Of the next call; nullopt: after the schedule's end.
  std::optional<int64_t> PlannedNs() const;

  const RateSchedule schedule_;
  const bool poisson_;
  const uint64_t warmup_calls_;
  std::mt19937_64 random_;
  // The schedule's time is told in calls: this many go before the next one, and before the first
  // that counts. Poisson arrivals add exponential gaps of mean 1 up.
  double calls_ = 0;
  double warmup_until_ = 0;
};

// Closed loop: a number of callers, each sends again when its answer has come.
class ClosedArrivals : public Arrivals {
 public:
  ClosedArrivals(uint32_t callers, int64_t duration_ns, uint64_t warmup);
  std::optional<int64_t> Peek() override;
  void Pop() override;
  void Completed(int64_t done_ns) override { free_since_ns_.push_back(done_ns); }

 private:
  std::deque<int64_t> free_since_ns_;  // of callers without a call
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_ARRIVALS_H_
