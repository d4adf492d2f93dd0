// SPDX-License-Identifier: Apache-2.0
// Counts of parameters, work and bytes of an attention layer, each with its convention.
#ifndef HEADWISE_CORE_FORMAT_COUNTS_H_
#define HEADWISE_CORE_FORMAT_COUNTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace headwise {

// Widths of a layer. dk, dv: one entry a query head (H), kv_dk, kv_dv: one entry a key/value head.
struct CountShape {
  int64_t d_model = 0;
  int64_t d_memory = 0;
  int64_t d_out = 0;
  std::vector<int64_t> dk, dv;        // [H]
  std::vector<int64_t> kv_dk, kv_dv;  // [G]
  // Which biases the layer has; unset (the counter has no layer): counted as if all four exist.
  bool q_bias = true, k_bias = true, v_bias = true, o_bias = true;
  // Rows of pruned heads that a norm over the whole width of q or k still counts; none: 0.
  int64_t q_statistic_rows = 0, k_statistic_rows = 0;
  bool q_statistic_bias = false, k_statistic_bias = false;
  int64_t weight_element_bytes = 4;  // of the packed weights
  int64_t activation_element_bytes = 4;
};

struct CountWorkload {
  int64_t batch = 1;    // B
  int64_t queries = 1;  // T
  int64_t keys = 1;     // S
};

struct Count {
  std::string id;
  int64_t value = 0;
  std::string unit;        // parameter, element, mac, flop, byte
  std::string convention;  // in words or letters
};

// The widths of a layer given by D, H and optionally G, dk, dv (0: the default). INVALID_ARGUMENT
// "width: model width must divide evenly across heads; was 512 for 7" where dk is not given.
absl::StatusOr<CountShape> MakeCountShape(int64_t d_model, int64_t heads, int64_t kv_heads,
                                          int64_t dk, int64_t dv);

// All counts, in a fixed order. INVALID_ARGUMENT if a figure exceeds 2^63 - 1 or a size is
// negative. kernel_score_bytes (what the kernel really holds of the scores) is added where given.
absl::StatusOr<std::vector<Count>> CountLayer(const CountShape& shape, const CountWorkload& work,
                                              std::optional<int64_t> kernel_score_bytes = {});

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_COUNTS_H_
