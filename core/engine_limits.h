// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_ENGINE_LIMITS_H_
#define HEADWISE_CORE_ENGINE_LIMITS_H_

#include "absl/status/status.h"
#include "core/batch/queue.h"
#include "core/engine.h"

namespace headwise {

// INVALID_ARGUMENT naming the first limit that is out of range.
absl::Status CheckLimits(const EngineLimits& limits);

// Those of the limits that the queue keeps.
QueueLimits QueueLimitsOf(const EngineLimits& limits);

}  // namespace headwise

#endif  // HEADWISE_CORE_ENGINE_LIMITS_H_
