// SPDX-License-Identifier: Apache-2.0
// The attention layer in float64 and plain loops: slow, simple, and what every kernel must agree
// with. It shares no code with them. StagedLayer computes it, stage by stage.
#ifndef HEADWISE_CORE_REFERENCE_REFERENCE_H_
#define HEADWISE_CORE_REFERENCE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "core/layer/spec.h"
#include "core/layer/weights.h"
#include "core/reference/reference_input.h"
#include "core/reference/staged_layer.h"

namespace headwise {

// One sequence. R is the number of query rows computed: T, or those that ReferenceOptions chose.
struct ReferenceSequence {
  std::vector<int64_t> rows;          // [R] query positions within the sequence
  int64_t keys = 0;                   // S
  std::vector<double> q;              // [R, sum dk over H], after norm and RoPE
  std::vector<double> k;              // [S, sum dk over G], after norm and RoPE
  std::vector<double> v;              // [S, sum dv over G]
  std::vector<double> scores;         // [H, R, S], after bias and soft-cap, before the mask
  std::vector<double> p;              // [H, R, S]
  std::vector<double> z;              // [R, sum dv over H], after gates
  std::vector<double> y;              // [R, d_out]
  std::vector<double> contributions;  // [R, H, d_out]
};

struct ReferenceOptions {
  // [N, H] multiplies z of (token, head), heads in axis order; empty: none. A gate selects: 0 makes
  // z zero and 1 leaves it alone, whatever z holds.
  std::vector<double> gates;
  // Packed query positions 0..N-1, ascending: the rows to compute; empty: all. The entry of a
  // sequence without one stays empty.
  std::vector<int64_t> rows;
};

// The layer itself. Immutable, thread-safe.
class ReferenceLayer {
 public:
  // `spec` is resolved and `matrices` fit it.
  ReferenceLayer(const LayerSpec& spec, const LayerMatrices& matrices);

  // One entry for each sequence of `input`.
  std::vector<ReferenceSequence> Run(const ReferenceInput& input,
                                     const ReferenceOptions& options = {}) const;

 private:
  const StagedLayer stages_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_REFERENCE_H_
