// SPDX-License-Identifier: Apache-2.0
// The attention layer in float64 and plain loops: slow, simple, and what every kernel must agree
// with. It shares no code with them. Read reference.cc from the bottom to see what a layer does.
#ifndef HEADWISE_CORE_REFERENCE_REFERENCE_H_
#define HEADWISE_CORE_REFERENCE_REFERENCE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"
#include "core/request.h"

namespace headwise {

// A request's numbers with every default filled in.
struct ReferenceInput {
  std::vector<double> x;         // [N, D]
  std::vector<int64_t> lengths;  // [B] T of each sequence
  std::vector<double> memory;    // [M, d_memory]: what enters k and v; a copy of x without one
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
  struct Sequence;  // where a sequence lies in the packed input
  struct Projection {
    std::vector<double> weight;  // [in, out]
    std::vector<double> bias;    // [out]
  };

  static Projection MakeProjection(const std::vector<float>& weight, const std::vector<float>& bias,
                                   int64_t in_width, int64_t out_width);
  ReferenceSequence RunSequence(const ReferenceInput& input, const ReferenceOptions& options,
                                const Sequence& sequence) const;
  // A QK-norm's weights for q or k; empty: none.
  struct Norm {
    std::vector<float> weight, bias;
  };
  void Clip(std::vector<double>* features) const;
  void Normalise(const Norm& norm, const std::vector<int64_t>& head_begins,
                 std::vector<double>* features) const;
  void Rotate(const std::vector<int64_t>& positions, double length,
              const std::vector<int64_t>& head_begins, std::vector<double>* features) const;
  static double PositionLength(const ReferenceInput& input, const Sequence& sequence);
  double Score(int64_t head, double dot, int64_t query_position, int64_t key_position) const;
  double MaskTerm(const ReferenceInput& input, const Sequence& sequence, int64_t head,
                  int64_t query, int64_t key) const;
  void Attend(const ReferenceInput& input, const Sequence& sequence, int64_t head, int64_t row,
              ReferenceSequence* out) const;
  void Gate(const std::vector<double>& gates, const Sequence& sequence,
            ReferenceSequence* out) const;
  void ProjectOut(ReferenceSequence* out) const;

  const LayerSpec spec_;
  const Projection q_, k_, v_;
  const Norm q_norm_, k_norm_;
  const std::vector<float> sinks_;          // [H]; empty: none
  const std::vector<float> table_;          // T5: [buckets, H]
  const std::vector<float> wo_;             // [d_out, sum dv over H]
  const std::vector<float> bo_;             // [d_out]; empty: none
  std::vector<int64_t> q_begin_, z_begin_;  // [H] first column of each head in q, z
  std::vector<int64_t> k_begin_, v_begin_;  // [G] first column of each head in k, v
};

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_REFERENCE_H_
