// SPDX-License-Identifier: Apache-2.0
#include "server/call_tracker.h"

namespace headwise {

bool CallTracker::Enter(LiveCall* call) {
  MutexLock lock(&mu_);
  if (draining_) return false;
  live_.insert(call);
  ++entered_;
  return true;
}

void CallTracker::Leave(LiveCall* call) {
  MutexLock lock(&mu_);
  live_.erase(call);
  if (draining_ && live_.empty()) changed_.SignalAll();
}

void CallTracker::StartDraining() {
  MutexLock lock(&mu_);
  if (draining_) return;
  draining_ = true;
  for (LiveCall* call : live_) call->OnDraining();
}

bool CallTracker::draining() const {
  MutexLock lock(&mu_);
  return draining_;
}

int64_t CallTracker::live() const {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(live_.size());
}

int64_t CallTracker::entered() const {
  MutexLock lock(&mu_);
  return entered_;
}

bool CallTracker::WaitIdle(TimePoint deadline) {
  MutexLock lock(&mu_);
  while (!live_.empty() && !hurry_) {
    if (!changed_.WaitUntil(&mu_, deadline)) break;
  }
  hurry_ = false;
  return live_.empty();
}

void CallTracker::Hurry() {
  MutexLock lock(&mu_);
  hurry_ = true;
  changed_.SignalAll();
}

void CallTracker::AbortAll() {
  MutexLock lock(&mu_);
  for (LiveCall* call : live_) call->Abort();
}

}  // namespace headwise
