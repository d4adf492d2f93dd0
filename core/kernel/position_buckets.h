// SPDX-License-Identifier: Apache-2.0
// Relative positions as T5 bins them: near ones exactly, far ones by their logarithm.
#ifndef HEADWISE_CORE_KERNEL_POSITION_BUCKETS_H_
#define HEADWISE_CORE_KERNEL_POSITION_BUCKETS_H_

#include <cstdint>

#include "core/layer/spec.h"

namespace headwise {

// Row of the bias table, 0..buckets-1, for a key whose position is `key_minus_query` after the
// query's. `spec` is a resolved T5_BUCKETS. Pure; thread-safe.
int64_t T5Bucket(const PositionBiasSpec& spec, int64_t key_minus_query);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_POSITION_BUCKETS_H_
