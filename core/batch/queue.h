// SPDX-License-Identifier: Apache-2.0
// Stage "queue": what waits for the compute slot.
#ifndef HEADWISE_CORE_BATCH_QUEUE_H_
#define HEADWISE_CORE_BATCH_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/batch/work_item.h"

namespace headwise {

// Requests in order of arrival, bounded in tokens. A batch takes the oldest request and, behind it,
// those that can share its pass: the same layer, and a memory if it has one. Not thread-safe.
class WorkQueue {
 public:
  using Items = std::vector<std::unique_ptr<WorkItem>>;
  // A request that left without a kernel, and why.
  using Dropped = std::vector<std::pair<std::unique_ptr<WorkItem>, absl::Status>>;

  explicit WorkQueue(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // Takes the item only if OK. RESOURCE_EXHAUSTED naming limit and size; retryable unless the
  // request alone exceeds the limit.
  absl::Status Push(std::unique_ptr<WorkItem>* item);

  // OK for a request that is worth starting, else why it isn't.
  using Check = absl::FunctionRef<absl::Status(const WorkItem&)>;

  // The next batch: at most max_requests (0: no limit) and max_tokens query tokens, but at least
  // one request. Those that it meets and that don't pass `check` go to `dropped`.
  Items TakeBatch(int64_t max_requests, int64_t max_tokens, Check check, Dropped* dropped);

  // All that are cancelled or expired.
  void TakeDead(absl::Time now, Dropped* dropped);

  // Everything.
  Items TakeAll();

  bool empty() const { return items_.empty(); }
  int64_t tokens() const { return tokens_; }

 private:
  std::unique_ptr<WorkItem> Take(std::deque<std::unique_ptr<WorkItem>>::iterator* at);

  const int64_t max_tokens_;
  int64_t tokens_ = 0;
  std::deque<std::unique_ptr<WorkItem>> items_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_QUEUE_H_
