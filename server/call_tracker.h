// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_CALL_TRACKER_H_
#define HEADWISE_SERVER_CALL_TRACKER_H_

#include <chrono>
#include <cstdint>
#include <set>

#include "core/base/mutex.h"

namespace headwise {

// A call that has been accepted and not yet ended.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  // Ends the call soon with UNAVAILABLE. Called at most once, under the tracker's lock: must not
  // block or call back.
  virtual void Abort() = 0;
  // No new calls are taken any more; one that only waits for its caller should end. Called at most
  // once, as Abort.
  virtual void OnDraining() {}
};

// Knows the accepted calls, so that a stop can wait for them and end the rest. Thread-safe.
class CallTracker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // False, and not tracked, once draining has begun.
  bool Enter(LiveCall* call);
  void Leave(LiveCall* call);

  void StartDraining();
  bool draining() const;
  int64_t live() const;     // how many are tracked now
  int64_t entered() const;  // how many ever were

  // True as soon as no call is left; false if `deadline` or Hurry comes first.
  bool WaitIdle(TimePoint deadline);
  // Makes the WaitIdle that waits, or the next one, return at once.
  void Hurry();
  // Aborts what is left. Calls must not be entered any more.
  void AbortAll();

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool hurry_ ABSL_GUARDED_BY(mu_) = false;
  std::set<LiveCall*> live_ ABSL_GUARDED_BY(mu_);
  int64_t entered_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_CALL_TRACKER_H_
