// SPDX-License-Identifier: Apache-2.0
#include "core/base/worker_pool.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <utility>

namespace headwise {
namespace {

// How often a helper looks for the next job before it sleeps: about 20 µs, the gap between two
// stages of a pass. Waking a sleeping thread costs more than that.
constexpr int kSpins = 400;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void UseOneOpenMpThread() { omp_set_num_threads(1); }

WorkerPool::WorkerPool(int threads, std::vector<int> cpus) : cpus_(std::move(cpus)) {
  for (int worker = 1; worker < threads; ++worker) {
    helpers_.emplace_back([this, worker] { HelperLoop(worker); });
  }
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
    changed_.SignalAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerPool::Run(int64_t count, Task task) {
  if (count <= 0) return;
  if (helpers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) task(i, 0);
    return;
  }
  {
    MutexLock lock(&mu_);
    task_ = &task;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    running_helpers_ = static_cast<int>(helpers_.size());
    generation_.fetch_add(1, std::memory_order_release);
    changed_.SignalAll();
  }
  Work(0);
  MutexLock lock(&mu_);
  while (running_helpers_ > 0) changed_.Wait(&mu_);
  task_ = nullptr;
}

void WorkerPool::Work(int worker) {
  for (;;) {
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    (*task_)(i, worker);
  }
}

void WorkerPool::Prepare(int worker) const {
  UseOneOpenMpThread();
  if (cpus_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_[static_cast<size_t>(worker) % cpus_.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // refused: it runs where it may
}

void WorkerPool::HelperLoop(int worker) {
  Prepare(worker);
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation_.load(std::memory_order_acquire) != seen) break;
      Pause();
    }
    {
      MutexLock lock(&mu_);
      while (generation_.load(std::memory_order_relaxed) == seen) changed_.Wait(&mu_);
      seen = generation_.load(std::memory_order_relaxed);
      if (stop_) return;
    }
    Work(worker);
    MutexLock lock(&mu_);
    if (--running_helpers_ == 0) changed_.SignalAll();
  }
}

}  // namespace headwise
