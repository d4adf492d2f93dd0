// SPDX-License-Identifier: Apache-2.0
// Stage "queue": what waits for the compute slot.
#ifndef HEADWISE_CORE_BATCH_QUEUE_H_
#define HEADWISE_CORE_BATCH_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/batch/fair_share.h"
#include "core/batch/work_item.h"

namespace headwise {

// Bounds on what waits. Bytes count the tensors that came with a request and those that its answer
// will hold.
struct QueueLimits {
  int64_t tokens = 1 << 20;
  int64_t bytes = int64_t{1} << 30;
  int64_t layer_tokens = 0;     // of one layer; 0: no bound of its own
  int64_t client_tokens = 0;    // of one client; 0: no bound of its own
  int64_t client_requests = 0;  // of one client; 0: no bound of its own
};

// What one batch may hold; its first request is taken whatever its size.
struct BatchRules {
  int64_t max_requests = 0;  // 0: no limit
  int64_t max_tokens = 16384;
  double max_long_work = 0.0;   // multiply-adds of a batch of long requests; 0: no limit
  double max_short_work = 0.0;  // of a batch of short ones
};

// What may interrupt a running batch.
struct InterruptRules {
  int64_t max_requests = 0;  // 0: no limit
  int64_t max_tokens = 16384;
  double max_work = 0.0;         // of the short requests, all together
  int32_t above_priority = 0;    // requests above this priority may be larger:
  double max_urgent_work = 0.0;  // each at most this
};

// Requests that wait, in lines: one for each client, layer and kind of input. Whose turn it is
// follows from what clients and layers have had (FairShare, in multiply-adds); within a line higher
// priority goes first, then who came first. Short and long requests (kShortWork) never share a
// batch: a short one would wait for the long one's end. Not thread-safe.
//
// Where several clients (or layers) are about, one alone can't fill the queue: it may hold at most
// eight times what is left free, which leaves room for the next that comes.
class WorkQueue {
 public:
  using Items = std::vector<std::unique_ptr<WorkItem>>;
  // A request that left without a kernel, and why.
  using Dropped = std::vector<std::pair<std::unique_ptr<WorkItem>, absl::Status>>;

  // A request of at most that many multiply-adds is short: some milliseconds of one core.
  static constexpr double kShortWork = 2e8;

  explicit WorkQueue(const QueueLimits& limits) : limits_(limits) {}

  // Takes the item only if OK. RESOURCE_EXHAUSTED (Refuse) naming limit and size; retryable unless
  // the request alone exceeds the limit.
  absl::Status Push(std::unique_ptr<WorkItem>* item, absl::Time now);

  // OK for a request that is worth starting, else why it isn't.
  using Check = absl::FunctionRef<absl::Status(const WorkItem&)>;

  // The next batch: requests of one layer, with a memory or all without. Those that it meets and
  // that don't pass `check` go to `dropped`.
  Items TakeBatch(const BatchRules& rules, absl::Time now, Check check, Dropped* dropped);

  // The next batch that may run inside another one; often empty.
  Items TakeInterrupt(const InterruptRules& rules, absl::Time now, Check check, Dropped* dropped);

  // All that are cancelled or expired.
  void TakeDead(absl::Time now, Dropped* dropped);

  // Everything.
  Items TakeAll();

  bool empty() const { return requests_ == 0; }
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return bytes_; }
  int64_t requests() const { return requests_; }
  double work() const { return work_; }  // estimated multiply-adds
  // What TakeInterrupt looks for: short requests, and long ones of high priority. The least number
  // where none is long.
  int64_t short_requests() const { return short_requests_; }
  int32_t top_long_priority() const {
    return long_priorities_.empty() ? std::numeric_limits<int32_t>::min()
                                    : long_priorities_.begin()->first;
  }

 private:
  // By priority, the highest first; each in order of arrival. No empty deques.
  using Line = std::map<int32_t, std::deque<std::unique_ptr<WorkItem>>, std::greater<>>;
  enum Kind { kShort = 0, kLong = 1 };
  struct Flow {
    FairShare::Account* client = nullptr;
    FairShare::Account* layer = nullptr;
    Line lines[2];  // by Kind
  };
  using FlowKey = std::tuple<std::string, const AttentionLayer*, bool>;  // client, layer, memory
  using Flows = std::map<FlowKey, Flow>;
  struct Choice {
    Flows::iterator flow;
    Kind kind = kShort;
    size_t place = 0;  // in the front deque of the line
  };
  // A batch under way.
  struct Batch {
    Items items;
    int64_t tokens = 0;
    double work = 0.0;
    Kind kind = kShort;
  };
  absl::Status CheckBounds(const WorkItem& item) const;
  absl::Status CheckPart(const FairShare& shares, const std::string& name, const WorkItem& item,
                         int64_t limit, bool is_client) const;
  // The line's turn; the least is next.
  double Place(const Flow& flow) const;
  // The place of the line whose head is to open a batch, and of the next that may join one; false:
  // none.
  bool ChooseFirst(const InterruptRules* interrupt, Choice* choice);
  bool ChooseNext(const BatchRules& rules, const Batch& batch, absl::Time now, Choice* choice);
  bool FindNext(const BatchRules& rules, const Batch& batch, Choice* choice);
  bool FindJoiner(const BatchRules& rules, const Batch& batch, Choice* choice) const;
  Items Fill(const BatchRules& rules, const InterruptRules* interrupt, absl::Time now, Check check,
             Dropped* dropped);
  std::unique_ptr<WorkItem> Take(const Choice& choice);
  void Uncount(const WorkItem& item, const Flow& flow);

  static Kind KindOf(const WorkItem& item) { return item.work <= kShortWork ? kShort : kLong; }

  QueueLimits limits_;
  FairShare clients_, layers_;
  Flows flows_;  // none is empty
  int64_t requests_ = 0, short_requests_ = 0;
  std::map<int32_t, int64_t, std::greater<>> long_priorities_;  // how many long ones have it
  int64_t tokens_ = 0, bytes_ = 0;
  double work_ = 0.0;
  int64_t order_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_QUEUE_H_
