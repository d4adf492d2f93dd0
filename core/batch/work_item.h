// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BATCH_WORK_ITEM_H_
#define HEADWISE_CORE_BATCH_WORK_ITEM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/ablation/effects.h"
#include "core/ablation/plan.h"
#include "core/base/clock.h"
#include "core/batch/validate.h"
#include "core/layer/attention_layer.h"
#include "core/request.h"

namespace headwise {

// What a pass leaves behind for one request.
struct WorkResult {
  PassInfo pass;
  std::vector<NamedOutput> outputs;
  // Of an ablation:
  std::vector<SegmentGram> grams;  // one a segment of its plan
  double y_l2 = 0.0;
  std::vector<double> y_l2_per_sequence;
  std::vector<AblationEffect> ablations;
  std::vector<Interaction> interactions;
  SequenceMeans means;  // where `return_means` asks for them
  std::vector<std::vector<HeadMeanSums>>
      mean_sums;  // of each source, where it is a mean taken here
};

// What an ablation adds to a forward.
struct AblationWork {
  AblationPlan plan;
  std::vector<int64_t> return_y;  // indices of ablations whose y is wanted, ascending
  bool return_p = false;          // and p beside each y
  bool return_gram = false;
  bool return_means = false;
  bool return_sums = false;  // what adds up over requests
  BootstrapOptions bootstrap;
};

// A validated request on its way through the queue and a pass. Touched by one thread at a time:
// whoever enqueues it, then the executor.
struct WorkItem {
  std::shared_ptr<const AttentionLayer> layer;
  ValidInput input;
  std::shared_ptr<const void> owner;  // of the bytes that `input` shows
  uint32_t outputs = 0;               // bits of OutputBit
  std::optional<AblationWork> ablation;
  RequestContext context;
  absl::Time accepted;
  double work = 0.0;                                     // estimated multiply-adds, EstimateWork
  int64_t bytes = 0;                                     // of the tensors that came and will go
  int32_t priority = 0;                                  // see WorkQueue
  int64_t order = 0;                                     // of arrival; set by the queue
  std::function<void(absl::StatusOr<WorkResult>)> done;  // called exactly once

  // What the queue's bound counts: an empty request takes a place too.
  int64_t cost_tokens() const { return std::max<int64_t>(1, input.tokens()); }

  // OK, or CANCELLED or DEADLINE_EXCEEDED: nobody waits for the answer any more.
  absl::Status Alive(absl::Time now) const;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_WORK_ITEM_H_
