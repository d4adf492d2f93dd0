// SPDX-License-Identifier: Apache-2.0
// The compute threads: one leader that calls Run, and helpers that join in.
#ifndef HEADWISE_CORE_BASE_WORKER_POOL_H_
#define HEADWISE_CORE_BASE_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/base/mutex.h"

namespace headwise {

// Runs numbered tasks on `threads` workers. Worker 0 is whoever calls Run; workers 1… are threads
// of the pool. Every worker has oneDNN's OpenMP set to one thread, so that nothing forks inside a
// task. Run must be called from one thread at a time; it may be another thread each time.
class WorkerPool {
 public:
  using Task = absl::FunctionRef<void(int64_t task, int worker)>;

  // threads >= 1. Throws std::system_error if the system gives no thread. With `cpus`, worker i
  // stays on cpus[i % size] where the system allows it.
  explicit WorkerPool(int threads, std::vector<int> cpus = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Makes the calling thread a compute thread, as the helpers are: for the one that always calls
  // Run.
  void PrepareCaller() { Prepare(0); }

  // Runs task(0) … task(count - 1), each once, in about that order; returns when all have ended.
  // count < 2^31.
  void Run(int64_t count, Task task);

  // A Run is on its way: wakes helpers that sleep, so that they needn't be waited for. Thread-safe.
  void Expect();

  // After the last Run of several: no other one follows at once. Until the caller says so, helpers
  // look out for it longer before they sleep. A hint.
  void Rest() { resting_.store(true, std::memory_order_relaxed); }

  // Within a task: which one this worker runs next, so that it can ask for that one's memory; -1:
  // not known yet, or none.
  int64_t Upcoming(int worker) const { return upcoming_[static_cast<size_t>(worker)]; }

 private:
  void Stop();
  void Prepare(int worker) const;
  void HelperLoop(int worker);
  void WaitForTasks();
  void WakeSleepers();
  // Runs tasks until none is left to take. True: the job ended with one of these.
  bool Work(int worker);
  // A task of the job under way, unless task >= count: then none is left.
  struct Ticket {
    int64_t task = 0, count = 0;
  };
  Ticket Take();

  const std::vector<int> cpus_;
  std::vector<std::thread> helpers_;

  Mutex mu_;
  CondVar changed_;
  // Both sides spin for a moment before they sleep, and wake the other only if it sleeps. Each
  // counts itself as a sleeper, then looks once more, before it waits under mu_: so either it sees
  // the other's news or the other sees it.
  std::atomic<uint64_t> generation_{0};  // of jobs
  std::atomic<int> sleepers_{0};
  std::atomic<bool> resting_{true};  // see Rest
  std::atomic<uint64_t> calls_{0};   // of Expect
  std::atomic<bool> stop_{false};

  // The job. It ends with its last task: nobody waits for a helper that hasn't taken one, because
  // it sleeps or another thread runs in its place. Whoever took one may read task_, which stays
  // until that task has ended.
  const Task* task_ = nullptr;
  std::atomic<uint64_t> line_{0};  // see Take: count, and how often somebody took, 32 bits each
  std::atomic<int64_t> unfinished_{0};
  std::vector<int64_t> upcoming_;  // [threads]; each worker reads and writes its own
};

// Sets this thread's OpenMP team to one thread. Call it on every thread that runs oneDNN.
void UseOneOpenMpThread();

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_WORKER_POOL_H_
