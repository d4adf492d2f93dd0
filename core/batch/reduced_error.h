// SPDX-License-Identifier: Apache-2.0
// What a layer loses by being kept in bf16 or int8, measured once when it is loaded.
#ifndef HEADWISE_CORE_BATCH_REDUCED_ERROR_H_
#define HEADWISE_CORE_BATCH_REDUCED_ERROR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/batch/executor.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// y of `reduced` against y of `exact`, the same weights in f32, on the probe input that the answer
// names. Waits for the compute slot. Not finite where the layer's own y isn't.
absl::StatusOr<ReducedError> MeasureReducedError(std::shared_ptr<const AttentionLayer> reduced,
                                                 std::shared_ptr<const AttentionLayer> exact,
                                                 Executor* executor);

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_REDUCED_ERROR_H_
