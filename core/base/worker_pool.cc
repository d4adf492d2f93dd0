// SPDX-License-Identifier: Apache-2.0
#include "core/base/worker_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "core/base/openmp.h"

namespace headwise {
namespace {

// A compute thread's slice of the CPU. Threads that only wake up to pass a message on keep the
// system's, some 3 ms, and since Linux 6.12 one with a shorter slice needn't wait for the end of a
// longer one.
constexpr uint64_t kSliceNs = 50'000'000;

// A compute thread's nice value, at least: threads that pass messages on shall not have to wait for
// their fair share of a CPU that a long pass keeps busy.
constexpr int32_t kNice = 5;

// How often somebody looks before he sleeps: about 20 µs, the end of a short task. Waking a
// sleeping thread costs more than that.
constexpr int kSpins = 1000;

// The same where another job follows at once, or the last tasks of one are running: about 160 µs.
// Threads end a stage up to a task apart, and a stage of a small layer takes no longer than waking.
constexpr int kSpinsInPass = 8000;

// Tasks left a worker from which on nobody takes one before it can run it.
constexpr int64_t kFewLeft = 3;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Where the system knows no slices it refuses or ignores this, and nothing is lost.
void GiveWayToMessages() {
  sched_attr attributes = {};
  if (sched_getattr(0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.sched_policy != SCHED_OTHER) return;
  attributes.sched_runtime = kSliceNs;
  attributes.sched_nice = std::max(attributes.sched_nice, kNice);
  sched_setattr(0, &attributes, 0);
}

}  // namespace

void UseOneOpenMpThread() { omp_set_num_threads(1); }

WorkerPool::WorkerPool(int threads, std::vector<int> cpus)
    : cpus_(std::move(cpus)), upcoming_(static_cast<size_t>(threads), -1) {
  try {
    for (int worker = 1; worker < threads; ++worker) {
      helpers_.emplace_back([this, worker] { HelperLoop(worker); });
    }
  } catch (...) {
    Stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Stop() {
  stop_.store(true);
  generation_.fetch_add(1);
  {
    MutexLock lock(&mu_);
    changed_.SignalAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerPool::Run(int64_t count, Task task) {
  if (count <= 0) return;
  if (helpers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) {
      upcoming_[0] = i + 1 < count ? i + 1 : -1;
      task(i, 0);
    }
    return;
  }
  task_ = &task;
  unfinished_.store(count, std::memory_order_relaxed);
  line_.store(static_cast<uint64_t>(count) << 32, std::memory_order_release);
  resting_.store(false, std::memory_order_relaxed);
  generation_.fetch_add(1);
  WakeSleepers();
  if (!Work(0)) WaitForTasks();
}

void WorkerPool::Expect() {
  resting_.store(false, std::memory_order_relaxed);
  calls_.fetch_add(1);
  WakeSleepers();
}

void WorkerPool::WakeSleepers() {
  if (sleepers_.load() == 0) return;
  MutexLock lock(&mu_);
  changed_.SignalAll();
}

void WorkerPool::WaitForTasks() {
  for (int spin = 0; spin < kSpinsInPass; ++spin) {
    if (unfinished_.load() == 0) return;
    Pause();
  }
  MutexLock lock(&mu_);
  sleepers_.fetch_add(1);
  while (unfinished_.load() > 0) changed_.Wait(&mu_);
  sleepers_.fetch_sub(1);
}

WorkerPool::Ticket WorkerPool::Take() {
  // One number, so that nobody gets a task of one job and the count of another.
  const uint64_t line = line_.fetch_add(1, std::memory_order_acquire);
  return {static_cast<int64_t>(line & 0xFFFFFFFFu), static_cast<int64_t>(line >> 32)};
}

// While many tasks are left a worker takes its next one before it runs this one. At the end it
// doesn't: a task must not wait for one worker while another is idle.
bool WorkerPool::Work(int worker) {
  const int64_t few = kFewLeft * threads();
  int64_t finished = 0;
  for (Ticket ticket = Take(); ticket.task < ticket.count;) {
    Ticket next;
    if (ticket.count - ticket.task > few) next = Take();
    const bool known = next.task < next.count;
    upcoming_[static_cast<size_t>(worker)] = known ? next.task : -1;
    (*task_)(ticket.task, worker);
    ++finished;
    ticket = known ? next : Take();
  }
  return finished > 0 && unfinished_.fetch_sub(finished) == finished;
}

void WorkerPool::Prepare(int worker) const {
  UseOneOpenMpThread();
  GiveWayToMessages();
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
    for (int spin = 0; generation_.load() == seen; ++spin) {
      if (spin >= (resting_.load(std::memory_order_relaxed) ? kSpins : kSpinsInPass)) break;
      Pause();
    }
    if (generation_.load() == seen) {
      MutexLock lock(&mu_);
      sleepers_.fetch_add(1);
      const uint64_t calls = calls_.load();
      while (generation_.load() == seen && calls_.load() == calls) changed_.Wait(&mu_);
      sleepers_.fetch_sub(1);
      if (generation_.load() == seen) continue;  // called: looks out for the job
    }
    seen = generation_.load();
    if (stop_.load()) return;
    if (Work(worker)) WakeSleepers();
  }
}

}  // namespace headwise
