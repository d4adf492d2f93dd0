// SPDX-License-Identifier: Apache-2.0
#include "core/batch/queue.h"

#include "absl/strings/str_cat.h"

namespace headwise {

absl::Status WorkItem::Alive(absl::Time now) const {
  if (context.cancel != nullptr && context.cancel->cancelled()) {
    return absl::CancelledError("request: called off by the caller; was queued or running");
  }
  if (now >= context.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("deadline: must lie ahead; was ",
                     absl::ToInt64Microseconds(now - context.deadline), " us ago"));
  }
  return absl::OkStatus();
}

absl::Status WorkQueue::Push(std::unique_ptr<WorkItem>* item) {
  const int64_t cost = (*item)->cost_tokens();
  if (cost > max_tokens_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "request: at most ", max_tokens_, " tokens can ever wait (--queue-tokens); was ", cost));
  }
  if (cost > max_tokens_ - tokens_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "queue: at most ", max_tokens_, " tokens may wait (--queue-tokens), retry later; was ",
        tokens_, " and ", cost, " more"));
  }
  tokens_ += cost;
  items_.push_back(std::move(*item));
  return absl::OkStatus();
}

std::unique_ptr<WorkItem> WorkQueue::Take(std::deque<std::unique_ptr<WorkItem>>::iterator* at) {
  std::unique_ptr<WorkItem> item = std::move(**at);
  *at = items_.erase(*at);
  tokens_ -= item->cost_tokens();
  return item;
}

WorkQueue::Items WorkQueue::TakeBatch(int64_t max_requests, int64_t max_tokens, Check check,
                                      Dropped* dropped) {
  Items batch;
  int64_t batch_tokens = 0;
  for (auto at = items_.begin(); at != items_.end();) {
    if (absl::Status worth = check(**at); !worth.ok()) {
      dropped->emplace_back(Take(&at), std::move(worth));
      continue;
    }
    const WorkItem& item = **at;
    if (!batch.empty()) {
      if (max_requests > 0 && static_cast<int64_t>(batch.size()) >= max_requests) break;
      const WorkItem& first = *batch.front();
      const bool fits = item.layer == first.layer &&
                        item.input.has_memory == first.input.has_memory &&
                        batch_tokens + item.input.query_rows <= max_tokens;
      if (!fits) {
        ++at;
        continue;
      }
    }
    batch_tokens += item.input.query_rows;
    batch.push_back(Take(&at));
  }
  return batch;
}

void WorkQueue::TakeDead(absl::Time now, Dropped* dropped) {
  for (auto at = items_.begin(); at != items_.end();) {
    if (absl::Status alive = (*at)->Alive(now); !alive.ok()) {
      dropped->emplace_back(Take(&at), std::move(alive));
    } else {
      ++at;
    }
  }
}

WorkQueue::Items WorkQueue::TakeAll() {
  Items all(std::make_move_iterator(items_.begin()), std::make_move_iterator(items_.end()));
  items_.clear();
  tokens_ = 0;
  return all;
}

}  // namespace headwise
