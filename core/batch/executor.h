// SPDX-License-Identifier: Apache-2.0
// Takes requests in, runs them in batches on the one compute slot, answers them.
#ifndef HEADWISE_CORE_BATCH_EXECUTOR_H_
#define HEADWISE_CORE_BATCH_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/size_histogram.h"
#include "core/base/worker_pool.h"
#include "core/batch/pass.h"
#include "core/batch/queue.h"
#include "core/batch/work_item.h"

namespace headwise {

struct ExecutorOptions {
  int threads = 1;                 // compute threads, the one that leads a pass included
  std::vector<int> cpus;           // pin thread i to cpus[i]; empty: not pinned
  int64_t max_batch_requests = 0;  // 0: no limit
  int64_t max_batch_tokens = 16384;
  absl::Duration batch_delay;  // how long an idle executor waits for company; 0: not at all
  QueueLimits queue;
  const Clock* clock = nullptr;  // not owned
};

struct ExecutorStats {
  int64_t passes = 0;
  int64_t pass_requests = 0;
  int64_t pass_tokens = 0;
  int64_t interrupts = 0;  // of the passes: those that ran inside a longer one
  SizeHistogram batch_requests;
  SizeHistogram batch_tokens;
  int64_t dropped_expired = 0;
  int64_t dropped_cancelled = 0;
  int64_t refused_full = 0;
  int64_t queued_tokens = 0;
  int64_t queued_requests = 0;
  int64_t queued_bytes = 0;
  absl::Duration backlog;  // what waits should take, at the rate of the last passes
};

// Batches by group commit: while a pass runs, requests gather; when it ends, the next one takes
// whose turn it is (WorkQueue) and all that fit. There is no timer unless `batch_delay` asks for
// one: an idle executor starts a lone request at once. Thread-safe.
//
// A pass of long requests doesn't hold up short ones: between two of its tasks, or two key blocks
// of one, a worker runs a pass of what is short, or of higher priority, while the others go on.
// Such a worker then gives the long pass at least as much time as the short one took, so both get
// on.
//
// A request is not started if its deadline leaves less than half of the shortest time that its
// layer ever took for as much work: it would compute for nobody, and the next one would start as
// late.
//
// Enqueue takes ownership only if it returns OK, and never blocks on compute; RESOURCE_EXHAUSTED
// means retry later. An accepted item's `done` is called exactly once, on a compute thread (or on
// the thread that calls DropDead), also for cancelled and expired items.
class Executor {
 public:
  explicit Executor(const ExecutorOptions& options);
  // Ends the running pass; what is queued is answered UNAVAILABLE.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  absl::Status Enqueue(std::unique_ptr<WorkItem>* item);  // also CANCELLED, DEADLINE_EXCEEDED

  // Answers every queued item that is cancelled or expired.
  void DropDead();

  // Runs `job` on the compute slot between two passes; returns when it has run.
  void RunExclusive(const std::function<void()>& job);

  // Runs one item as a pass of its own on the compute slot, past the queue and its bounds; returns
  // when its `done` has been called. For measurements at load.
  void RunAlone(std::unique_ptr<WorkItem> item);

  ExecutorStats stats() const;

 private:
  // What a worker needs to run a pass inside another one.
  struct SideLane {
    WorkerPool pool{1};
    PassMemory memory;
    absl::Time rest_until = absl::InfinitePast();  // the long pass's turn
  };
  // The pass that interrupts are measured against.
  struct Running {
    double work = 0.0;
    int32_t priority = 0;
  };

  void Lead();  // loop of the thread that leads passes
  // Waits for work; false: the executor ends.
  bool Next(std::function<void()>* job, WorkQueue::Items* batch, WorkQueue::Dropped* dropped);
  void WaitForCompany() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  BatchRules MakeBatchRules() const;
  void RunBatch(WorkQueue::Items batch);
  void Interrupt(int worker, const Running& running);
  bool HasInterrupt(const Running& running) const;

  void AnswerDropped(WorkQueue::Dropped dropped);
  absl::Status WorthStarting(const WorkItem& item, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After a pass that was called off: a client that goes away takes all its calls with it, and the
  // next in the queue is likely one of them. Waits until a moment has passed without such news.
  void LetBurstArrive();
  void LearnPace(const std::shared_ptr<const AttentionLayer>& layer, double work,
                 absl::Duration took);
  void CountDropped(const WorkQueue::Dropped& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountDropped(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountPass(const WorkQueue::Items& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration Backlog() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the workers, without a lock, what the queue holds. After each change of the queue.
  void PublishQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ExecutorOptions options_;
  WorkerPool pool_;
  PassMemory memory_;                             // of the leader
  std::vector<std::unique_ptr<SideLane>> lanes_;  // one a worker, which alone uses it

  mutable Mutex mu_;
  CondVar work_;
  WorkQueue queue_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> exclusive_ ABSL_GUARDED_BY(mu_);
  ExecutorStats stats_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool idle_ ABSL_GUARDED_BY(mu_) = false;  // the leader waits for work
  // Fewest seconds that a unit of work took, for each layer in use. (A Duration is too coarse: a
  // unit takes less than a nanosecond.)
  std::map<std::weak_ptr<const AttentionLayer>, double, std::owner_less<>> pace_
      ABSL_GUARDED_BY(mu_);
  // Multiply-adds of the last passes, and the seconds that they took.
  double recent_work_ ABSL_GUARDED_BY(mu_) = 0.0;
  double recent_seconds_ ABSL_GUARDED_BY(mu_) = 0.0;

  std::atomic<int64_t> short_requests_{0};
  std::atomic<int32_t> top_long_priority_{0};

  std::thread leader_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_EXECUTOR_H_
