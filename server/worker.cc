// SPDX-License-Identifier: Apache-2.0
#include "server/worker.h"

#include <utility>

namespace headwise {

Worker::Worker(size_t max_jobs, int threads) : max_jobs_(max_jobs) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  } catch (...) {
    Stop();
    throw;
  }
}

Worker::~Worker() { Stop(); }

void Worker::Stop() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool Worker::Post(std::function<void()> job) {
  MutexLock lock(&mu_);
  if (jobs_.size() >= max_jobs_) return false;
  jobs_.push_back(std::move(job));
  changed_.Signal();
  return true;
}

void Worker::Run() {
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(&mu_);
      while (jobs_.empty() && !stop_) changed_.Wait(&mu_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace headwise
