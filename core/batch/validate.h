// SPDX-License-Identifier: Apache-2.0
// Stage "validate": every rule on a request's tensors, before anything is queued or allocated.
#ifndef HEADWISE_CORE_BATCH_VALIDATE_H_
#define HEADWISE_CORE_BATCH_VALIDATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/layer/spec.h"
#include "core/request.h"

namespace headwise {

// A checked input: lengths resolved, masks found their form, positions as integers. The views still
// point into AttentionInput::owner.
struct ValidInput {
  std::vector<int64_t> queries;  // [B] T of each sequence
  std::vector<int64_t> keys;     // [B] S of each sequence
  int64_t query_rows = 0;        // N
  int64_t key_rows = 0;          // M
  TensorView x;
  TensorView memory;  // x itself without a memory
  bool has_memory = false;

  bool causal = false;
  bool bottom_right = false;
  int64_t window = -1;  // -1: none

  std::vector<int64_t> positions;      // [N], or empty: 0..T-1
  std::vector<int64_t> key_positions;  // [M], or empty

  // User mask; both null without one.
  MaskForm mask_form = MaskForm::kByCount;
  const uint8_t* keep = nullptr;
  const float* additive = nullptr;
  bool keep_is_drop = false;
  std::vector<float> additive_copy;  // where the caller's was not aligned f32

  int64_t tokens() const { return query_rows + (has_memory ? key_rows : 0); }
};

// INVALID_ARGUMENT "field: rule; was VALUE". Thread-safe; reads masks and positions, never x.
absl::StatusOr<ValidInput> ValidateInput(const LayerSpec& spec, const AttentionInput& input,
                                         int64_t max_sequences);

// Bytes that `outputs` (bits of OutputBit) of such an input take, saturated at 2^62.
int64_t OutputBytes(const LayerSpec& spec, const ValidInput& input, uint32_t outputs);

// Estimated multiply-adds of a forward, with the softmax of a score counted as 32. For comparing
// requests of one layer with each other.
double EstimateWork(const LayerSpec& spec, const ValidInput& input);

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_VALIDATE_H_
