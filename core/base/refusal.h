// SPDX-License-Identifier: Apache-2.0
// RESOURCE_EXHAUSTED with a reason that machines can read.
#ifndef HEADWISE_CORE_BASE_REFUSAL_H_
#define HEADWISE_CORE_BASE_REFUSAL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace headwise {

// Which bound a request ran into.
enum class Refusal {
  kTooLarge,      // it alone exceeds a limit: never retry
  kQueueFull,     // tokens or bytes waiting, over all layers
  kLayerFull,     // one layer's part of the queue
  kClientFull,    // one client's part of the queue, or its calls
  kRequestBytes,  // the memory for requests and their answers
  kLayerBytes,    // the memory for layers
};

// "QUEUE_FULL", …: the label of headwise_refusals_total and the reason of ErrorInfo.
absl::string_view RefusalName(Refusal refusal);

// RESOURCE_EXHAUSTED. `message` reads "field: rule; was VALUE", and for what may pass later its
// rule says "retry later".
absl::Status Refuse(Refusal refusal, const std::string& message);

// The name that Refuse put in; "" for any other status.
std::string RefusalOf(const absl::Status& status);

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_REFUSAL_H_
