// SPDX-License-Identifier: Apache-2.0
#include "core/batch/executor.h"

#include <future>
#include <utility>

namespace headwise {

Executor::Executor(const ExecutorOptions& options)
    : options_(options), pool_(options.threads), queue_(options.queue_tokens) {
  leader_ = std::thread([this] { Lead(); });
}

Executor::~Executor() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    work_.SignalAll();
  }
  leader_.join();
  WorkQueue::Items left;
  {
    MutexLock lock(&mu_);
    left = queue_.TakeAll();
  }
  for (const std::unique_ptr<WorkItem>& item : left) {
    item->done(absl::UnavailableError("server: shutting down; was queued"));
  }
}

absl::Status Executor::Enqueue(std::unique_ptr<WorkItem>* item) {
  MutexLock lock(&mu_);
  if (stop_) return absl::UnavailableError("server: shutting down; was a new request");
  if (absl::Status alive = (*item)->Alive(options_.clock->Now()); !alive.ok()) {
    CountDropped(alive);
    return alive;
  }
  absl::Status pushed = queue_.Push(item);
  if (!pushed.ok()) {
    ++stats_.refused_full;
    return pushed;
  }
  work_.Signal();
  return absl::OkStatus();
}

void Executor::CountDropped(const absl::Status& status) {
  (absl::IsCancelled(status) ? stats_.dropped_cancelled : stats_.dropped_expired) += 1;
}

void Executor::AnswerDropped(WorkQueue::Dropped dropped) {
  for (auto& [item, status] : dropped) item->done(std::move(status));
}

void Executor::DropDead() {
  WorkQueue::Dropped dropped;
  {
    MutexLock lock(&mu_);
    queue_.TakeDead(options_.clock->Now(), &dropped);
    for (const auto& [item, status] : dropped) CountDropped(status);
  }
  AnswerDropped(std::move(dropped));
}

void Executor::RunExclusive(const std::function<void()>& job) {
  std::promise<void> ran;
  {
    MutexLock lock(&mu_);
    exclusive_.push_back([&] {
      job();
      ran.set_value();
    });
    work_.Signal();
  }
  ran.get_future().wait();
}

void Executor::Lead() {
  UseOneOpenMpThread();
  for (;;) {
    std::function<void()> job;
    WorkQueue::Items batch;
    WorkQueue::Dropped dropped;
    {
      MutexLock lock(&mu_);
      while (!stop_ && queue_.empty() && exclusive_.empty()) work_.Wait(&mu_);
      if (!exclusive_.empty()) {
        job = std::move(exclusive_.front());
        exclusive_.pop_front();
      } else if (stop_) {
        return;
      } else {
        batch = queue_.TakeBatch(options_.clock->Now(), options_.max_batch_requests,
                                 options_.max_batch_tokens, &dropped);
        for (const auto& [item, status] : dropped) CountDropped(status);
        if (!batch.empty()) ++stats_.passes;
        stats_.pass_requests += static_cast<int64_t>(batch.size());
        for (const auto& item : batch) stats_.pass_tokens += item->input.query_rows;
      }
    }
    AnswerDropped(std::move(dropped));
    if (job) job();
    if (batch.empty()) continue;
    Pass(std::move(batch), &pool_, &memory_, options_.clock).Run();
    memory_.Trim();
  }
}

ExecutorStats Executor::stats() const {
  MutexLock lock(&mu_);
  ExecutorStats stats = stats_;
  stats.queued_tokens = queue_.tokens();
  return stats;
}

}  // namespace headwise
