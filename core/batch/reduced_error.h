// SPDX-License-Identifier: Apache-2.0
// What a layer loses by being kept in bf16 or int8, measured once when it is loaded.
#ifndef HEADWISE_CORE_BATCH_REDUCED_ERROR_H_
#define HEADWISE_CORE_BATCH_REDUCED_ERROR_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/batch/executor.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// y of a layer's f32 weights on the probe input that the answer names, taken from the weights as
// they pass by on their way into the reduced layer: they are not kept, which would take more memory
// than that layer. One thread.
class ReducedErrorProbe {
 public:
  // `exact` is the layer in f32, prepared, its rows still to come. Both must outlive the probe.
  ReducedErrorProbe(std::shared_ptr<AttentionLayer> exact, Executor* executor);

  // Rows of a matrix, as AttentionLayer::PackRows takes them; those of W_O after all others, at
  // whose first rows it waits for the compute slot.
  void Take(WeightMatrix matrix, int64_t first, int64_t count, const float* rows);

  // y of `reduced` against that of the weights that went by, once they all have. Waits for the
  // compute slot. Not finite where the layer's own y isn't.
  absl::StatusOr<ReducedError> Compare(std::shared_ptr<const AttentionLayer> reduced);

 private:
  absl::StatusOr<std::vector<float>> Run(std::shared_ptr<const AttentionLayer> layer,
                                         uint32_t output) const;

  const std::shared_ptr<AttentionLayer> exact_;
  Executor* const executor_;
  const std::vector<float> x_, memory_;  // memory_: empty for a layer that takes x as its memory
  std::vector<float> z_;                 // of the exact layer
  absl::Status status_;                  // of what Take ran
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_REDUCED_ERROR_H_
