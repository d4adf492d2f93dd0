// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_WORKER_H_
#define HEADWISE_SERVER_WORKER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace headwise {

// Threads that take jobs in order: what reads files and packs weights, and so may take long, runs
// here and not on a gRPC thread. Thread-safe.
class Worker {
 public:
  // Throws std::system_error if the system gives no thread.
  explicit Worker(size_t max_jobs, int threads = 1);
  // Runs what is queued, then ends.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // False, and `job` is dropped, if `max_jobs` wait already.
  bool Post(std::function<void()> job);

 private:
  void Stop();
  void Run();

  const size_t max_jobs_;
  Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // last: they start when the rest is there
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_WORKER_H_
