// SPDX-License-Identifier: Apache-2.0
// What enters the float64 reference.
#ifndef HEADWISE_CORE_REFERENCE_REFERENCE_INPUT_H_
#define HEADWISE_CORE_REFERENCE_REFERENCE_INPUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/layer/spec.h"
#include "core/request.h"

namespace headwise {

// A request's numbers with every default filled in.
struct ReferenceInput {
  std::vector<double> x;         // [N, D]
  std::vector<int64_t> lengths;  // [B] T of each sequence
  std::vector<double> memory;    // [M, d_memory]: what enters k and v; a copy of x without one
  bool own_memory = false;       // there is one
  std::vector<int64_t> memory_lengths;    // [B] S of each sequence
  std::vector<int64_t> positions;         // [N] of the queries, for RoPE
  std::vector<int64_t> memory_positions;  // [M] of the keys
  bool causal = false;
  bool bottom_right = false;  // anchors the causal triangle at the last key
  std::optional<int64_t> window;
  MaskKind mask_kind = MaskKind::kUnspecified;  // unspecified: no user mask
  MaskForm mask_form = MaskForm::kKey;
  std::vector<double> mask;  // as MaskInput::tensor; booleans as 0 and 1
};

// Reads `input` for the resolved `spec`. It checks only what it needs so as not to read out of
// bounds; the rules for requests are the engine's. INVALID_ARGUMENT.
absl::StatusOr<ReferenceInput> ReadReferenceInput(const LayerSpec& spec,
                                                  const AttentionInput& input);

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_REFERENCE_INPUT_H_
