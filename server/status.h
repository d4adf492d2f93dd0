// SPDX-License-Identifier: Apache-2.0
// From absl::Status to what a gRPC caller sees.
#ifndef HEADWISE_SERVER_STATUS_H_
#define HEADWISE_SERVER_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace headwise {

// For what has nothing to do with load: a server that drains, a layer that is still loading.
inline constexpr absl::Duration kRetryDelayOfOthers = absl::Seconds(1);

// The same code and one-line message, with a google.rpc.Status as details: ErrorInfo {reason,
// domain "headwise"}; BadRequest naming the field (the message's text before the first ": ") for
// INVALID_ARGUMENT; RetryInfo with `retry_delay` where the same request may succeed later.
grpc::Status ToGrpcStatus(const absl::Status& status,
                          absl::Duration retry_delay = kRetryDelayOfOthers);

// When a request that was refused for load is worth trying again: half the time that what waits
// should take, so that there is room for more than one caller by then; from 10 ms to 30 s.
absl::Duration RetryDelay(absl::Duration backlog);

// The reason that ErrorInfo gives: "QUEUE_FULL", "INVALID_FIELD", … Of a fixed set.
std::string ReasonOf(const absl::Status& status);

// Whether the same request may succeed later: UNAVAILABLE, and RESOURCE_EXHAUSTED whose message
// says "retry".
bool IsRetryable(const absl::Status& status);

// The text before the first ": " where that looks like a field ("lengths", "x.data"); else "".
absl::string_view FieldOf(absl::string_view message);

}  // namespace headwise

#endif  // HEADWISE_SERVER_STATUS_H_
