// SPDX-License-Identifier: Apache-2.0
#include "core/batch/executor.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

// How long cancellations that were sent together may lie apart when they arrive, and how often that
// long is waited for the next one.
constexpr std::chrono::milliseconds kBurst(3);
constexpr int kMostOfBurst = 10;

// Multiply-adds of a batch, for each thread: some 50 ms of long requests, which whoever comes next
// waits for, and 10 ms of short ones. Far more than batching gains from.
constexpr double kLongBatchWork = 2.5e9;
constexpr double kShortBatchWork = 5e8;

// A request of higher priority may interrupt if one thread runs it in about 80 ms.
constexpr double kUrgentWork = 4e9;

// An interrupt is at most that part of the pass that it interrupts.
constexpr double kInterruptShare = 0.125;
constexpr double kUrgentShare = 0.5;

// How much of the past the measured rate remembers: passes of the last one or two seconds.
constexpr double kRecentSeconds = 2.0;

double WorkOf(const WorkQueue::Items& batch) {
  double work = 0.0;
  for (const auto& item : batch) work += item->work;
  return work;
}

}  // namespace

Executor::Executor(const ExecutorOptions& options)
    : options_(options), pool_(options.threads, options.cpus), queue_(options.queue) {
  for (int i = 0; i < pool_.threads(); ++i) lanes_.push_back(std::make_unique<SideLane>());
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
  const absl::Time now = options_.clock->Now();
  if (absl::Status alive = (*item)->Alive(now); !alive.ok()) {
    CountDropped(alive);
    return alive;
  }
  absl::Status pushed = queue_.Push(item, now);
  if (!pushed.ok()) {
    ++stats_.refused_full;
    return pushed;
  }
  PublishQueue();
  work_.Signal();
  // The leader and its helpers wake up together, not one after the other.
  if (idle_) pool_.Expect();
  return absl::OkStatus();
}

void Executor::CountDropped(const absl::Status& status) {
  (absl::IsCancelled(status) ? stats_.dropped_cancelled : stats_.dropped_expired) += 1;
}

void Executor::CountDropped(const WorkQueue::Dropped& dropped) {
  for (const auto& [item, status] : dropped) CountDropped(status);
}

void Executor::CountPass(const WorkQueue::Items& batch) {
  if (batch.empty()) return;
  int64_t tokens = 0;
  for (const auto& item : batch) tokens += item->input.query_rows;
  ++stats_.passes;
  stats_.pass_requests += static_cast<int64_t>(batch.size());
  stats_.pass_tokens += tokens;
  stats_.batch_requests.Add(static_cast<int64_t>(batch.size()));
  stats_.batch_tokens.Add(tokens);
}

void Executor::PublishQueue() {
  short_requests_.store(queue_.short_requests(), std::memory_order_relaxed);
  top_long_priority_.store(queue_.top_long_priority(), std::memory_order_relaxed);
}

void Executor::AnswerDropped(WorkQueue::Dropped dropped) {
  for (auto& [item, status] : dropped) item->done(std::move(status));
}

void Executor::DropDead() {
  WorkQueue::Dropped dropped;
  {
    MutexLock lock(&mu_);
    queue_.TakeDead(options_.clock->Now(), &dropped);
    CountDropped(dropped);
    PublishQueue();
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
  for (int i = 0; i < kMostOfBurst; ++i) {
    const auto end = std::chrono::steady_clock::now() + kBurst;
    int64_t before = 0;
    {
      MutexLock lock(&mu_);
      before = stats_.dropped_cancelled;
      while (!stop_ && work_.WaitUntil(&mu_, end)) {
      }
    }
    DropDead();
    MutexLock lock(&mu_);
    if (stop_ || stats_.dropped_cancelled == before) return;
  }
}

void Executor::LearnPace(const std::shared_ptr<const AttentionLayer>& layer, double work,
                         absl::Duration took) {
  MutexLock lock(&mu_);
  std::erase_if(pace_, [](const auto& entry) { return entry.first.expired(); });
  if (took <= absl::ZeroDuration() || work <= 0.0) return;
  recent_work_ += work;
  recent_seconds_ += absl::ToDoubleSeconds(took);
  if (recent_seconds_ > kRecentSeconds) {
    recent_work_ /= 2;
    recent_seconds_ /= 2;
  }
  const double pace = absl::ToDoubleSeconds(took) / work;
  const auto [entry, is_new] = pace_.emplace(layer, pace);
  if (!is_new) entry->second = std::min(entry->second, pace);
}

absl::Duration Executor::Backlog() const {
  if (recent_work_ <= 0.0) return absl::ZeroDuration();
  return absl::Seconds(queue_.work() * recent_seconds_ / recent_work_);
}

BatchRules Executor::MakeBatchRules() const {
  const double threads = static_cast<double>(pool_.threads());
  return {.max_requests = options_.max_batch_requests,
          .max_tokens = options_.max_batch_tokens,
          .max_long_work = kLongBatchWork * threads,
          .max_short_work = kShortBatchWork * threads};
}

void Executor::WaitForCompany() {
  if (options_.batch_delay <= absl::ZeroDuration()) return;
  const auto end =
      std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(options_.batch_delay);
  while (!stop_ && exclusive_.empty() && queue_.tokens() < options_.max_batch_tokens &&
         (options_.max_batch_requests == 0 || queue_.requests() < options_.max_batch_requests) &&
         work_.WaitUntil(&mu_, end)) {
  }
}

bool Executor::Next(std::function<void()>* job, WorkQueue::Items* batch,
                    WorkQueue::Dropped* dropped) {
  MutexLock lock(&mu_);
  while (!stop_ && queue_.empty() && exclusive_.empty()) {
    idle_ = true;
    work_.Wait(&mu_);
  }
  idle_ = false;
  if (exclusive_.empty() && !stop_) WaitForCompany();
  if (!exclusive_.empty()) {
    *job = std::move(exclusive_.front());
    exclusive_.pop_front();
    return true;
  }
  if (stop_) return false;
  const absl::Time now = options_.clock->Now();
  *batch = queue_.TakeBatch(
      MakeBatchRules(), now,
      [&](const WorkItem& item) ABSL_NO_THREAD_SAFETY_ANALYSIS { return WorthStarting(item, now); },
      dropped);
  CountDropped(*dropped);
  CountPass(*batch);
  PublishQueue();
  return true;
}

void Executor::RunBatch(WorkQueue::Items batch) {
  const std::shared_ptr<const AttentionLayer> layer = batch.front()->layer;
  Running running{.work = WorkOf(batch), .priority = batch.front()->priority};
  for (const auto& item : batch) running.priority = std::max(running.priority, item->priority);
  const bool is_long = batch.front()->work > WorkQueue::kShortWork;
  Pass::BetweenTasks between;
  if (is_long) between = [this, &running](int worker) { Interrupt(worker, running); };
  const Pass::Outcome outcome =
      Pass(std::move(batch), &pool_, &memory_, options_.clock, std::move(between)).Run();
  if (outcome.complete) {
    LearnPace(layer, running.work, outcome.took);
  } else {
    LetBurstArrive();
  }
  memory_.Trim();
}

bool Executor::HasInterrupt(const Running& running) const {
  return short_requests_.load(std::memory_order_relaxed) > 0 ||
         top_long_priority_.load(std::memory_order_relaxed) > running.priority;
}

void Executor::Interrupt(int worker, const Running& running) {
  if (!HasInterrupt(running)) return;
  SideLane& lane = *lanes_[static_cast<size_t>(worker)];
  const absl::Time now = options_.clock->Now();
  if (now < lane.rest_until) return;
  WorkQueue::Items batch;
  WorkQueue::Dropped dropped;
  {
    MutexLock lock(&mu_);
    const InterruptRules rules{
        .max_requests = options_.max_batch_requests,
        .max_tokens = options_.max_batch_tokens,
        .max_work = std::min(WorkQueue::kShortWork, running.work * kInterruptShare),
        .above_priority = running.priority,
        .max_urgent_work = std::min(kUrgentWork, running.work * kUrgentShare)};
    batch = queue_.TakeInterrupt(
        rules, now,
        [&](const WorkItem& item)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { return WorthStarting(item, now); },
        &dropped);
    CountDropped(dropped);
    CountPass(batch);
    if (!batch.empty()) ++stats_.interrupts;
    PublishQueue();
  }
  AnswerDropped(std::move(dropped));
  if (batch.empty()) return;
  Pass(std::move(batch), &lane.pool, &lane.memory, options_.clock).Run();
  lane.memory.Trim();
  const absl::Time end = options_.clock->Now();
  lane.rest_until = end + (end - now);
}

void Executor::Lead() {
  pool_.PrepareCaller();
  for (;;) {
    std::function<void()> job;
    WorkQueue::Items batch;
    WorkQueue::Dropped dropped;
    if (!Next(&job, &batch, &dropped)) return;
    AnswerDropped(std::move(dropped));
    if (job) job();
    if (!batch.empty()) RunBatch(std::move(batch));
  }
}

ExecutorStats Executor::stats() const {
  MutexLock lock(&mu_);
  ExecutorStats stats = stats_;
  stats.queued_tokens = queue_.tokens();
  stats.queued_requests = queue_.requests();
  stats.queued_bytes = queue_.bytes();
  stats.backlog = Backlog();
  return stats;
}

}  // namespace headwise
