// SPDX-License-Identifier: Apache-2.0
#include "core/engine_limits.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace headwise {
namespace {

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": must be >= ", least, "; was ", value));
}

}  // namespace

absl::Status CheckLimits(const EngineLimits& limits) {
  absl::Status status = CheckRange("max_batch_requests", limits.max_batch_requests, 0);
  if (status.ok()) status = CheckRange("max_batch_tokens", limits.max_batch_tokens, 1);
  if (status.ok()) status = CheckRange("queue_tokens", limits.queue_tokens, 1);
  if (status.ok()) status = CheckRange("queue_bytes", limits.queue_bytes, 1);
  if (status.ok()) status = CheckRange("max_output_bytes", limits.max_output_bytes, 1);
  if (status.ok()) status = CheckRange("max_sequences", limits.max_sequences, 1);
  if (status.ok()) status = CheckRange("max_ablations", limits.max_ablations, 1);
  return status;
}

QueueLimits QueueLimitsOf(const EngineLimits& limits) {
  return {.tokens = limits.queue_tokens,
          .bytes = limits.queue_bytes,
          .layer_tokens = limits.layer_queue_tokens,
          .client_tokens = limits.client_queue_tokens,
          .client_requests = limits.client_queue_requests};
}

}  // namespace headwise
