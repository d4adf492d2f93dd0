// SPDX-License-Identifier: Apache-2.0
#include "core/batch/executor.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

// How long cancellations that were sent together may take to arrive one after the other.
constexpr std::chrono::milliseconds kBurst(3);

}  // namespace

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

void Executor::RunAlone(std::unique_ptr<WorkItem> item) {
  RunExclusive([&] {
    std::vector<std::unique_ptr<WorkItem>> items;
    items.push_back(std::move(item));
    Pass(std::move(items), &pool_, &memory_, options_.clock).Run();
  });
}

absl::Status Executor::WorthStarting(const WorkItem& item, absl::Time now) const {
  if (absl::Status alive = item.Alive(now); !alive.ok()) return alive;
  const auto known = pace_.find(item.layer);
  if (known == pace_.end()) return absl::OkStatus();
  const absl::Duration needed = absl::Seconds(known->second * item.work);
  const absl::Duration left = item.context.deadline - now;
  if (left >= needed / 2) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "deadline: must leave time for the work, about ", absl::ToInt64Microseconds(needed),
      " us; was ", absl::ToInt64Microseconds(left), " us ahead after the queue"));
}

void Executor::LetBurstArrive() {
  const auto end = std::chrono::steady_clock::now() + kBurst;
  MutexLock lock(&mu_);
  while (!stop_ && work_.WaitUntil(&mu_, end)) {
  }
}

void Executor::LearnPace(const std::shared_ptr<const AttentionLayer>& layer, double work,
                         absl::Duration took) {
  std::erase_if(pace_, [](const auto& entry) { return entry.first.expired(); });
  if (took <= absl::ZeroDuration() || work <= 0.0) return;
  const double pace = absl::ToDoubleSeconds(took) / work;
  const auto [entry, is_new] = pace_.emplace(layer, pace);
  if (!is_new) entry->second = std::min(entry->second, pace);
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
        const absl::Time now = options_.clock->Now();
        batch = queue_.TakeBatch(
            options_.max_batch_requests, options_.max_batch_tokens,
            [&](const WorkItem& item) { return WorthStarting(item, now); }, &dropped);
        for (const auto& [item, status] : dropped) CountDropped(status);
        if (!batch.empty()) ++stats_.passes;
        stats_.pass_requests += static_cast<int64_t>(batch.size());
        for (const auto& item : batch) stats_.pass_tokens += item->input.query_rows;
      }
    }
    AnswerDropped(std::move(dropped));
    if (job) job();
    if (batch.empty()) continue;
    const std::shared_ptr<const AttentionLayer> layer = batch.front()->layer;
    double work = 0.0;
    for (const auto& item : batch) work += item->work;
    const Pass::Outcome outcome = Pass(std::move(batch), &pool_, &memory_, options_.clock).Run();
    if (outcome.complete) {
      LearnPace(layer, work, outcome.took);
    } else {
      LetBurstArrive();
    }
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
