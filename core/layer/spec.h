// SPDX-License-Identifier: Apache-2.0
// What makes an attention layer, but its numbers. Plain values; letters as in the README's
// glossary: D model width, H query heads, G key/value heads, dk and dv a head's key and value
// width.
#ifndef HEADWISE_CORE_LAYER_SPEC_H_
#define HEADWISE_CORE_LAYER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace headwise {

enum class Orientation : uint8_t { kUnspecified, kOutIn, kInOut };
enum class FusedLayout : uint8_t { kSeparate, kBlocks, kPerHead, kPerGroup };
enum class RopeLayout : uint8_t { kUnspecified, kHalf, kInterleaved };
enum class RopeScaling : uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
enum class NormKind : uint8_t { kRms, kRmsPlusOne, kLayerNorm };
enum class QkNormSpan : uint8_t { kHead, kHeads, kWidth };
enum class PositionBiasKind : uint8_t { kAlibi, kT5Buckets };

// Bounds that keep every product of sizes far inside 64 bits: the largest weight that passes has
// 2^12 * 2^16 * 2^20 = 2^48 elements.
inline constexpr int64_t kMaxModelWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadWidth = int64_t{1} << 16;

// Causal: query i sees keys (i - window, i]. Not causal: |i - j| <= window. No window: no limit.
struct MaskSpec {
  bool causal = false;
  std::optional<int64_t> window;
};

// Rotary embedding of the first `dims` features; inv_freq[i] = base^(-2i/dims) before scaling. L is
// a sequence's largest position + 1: DYNAMIC and LONGROPE look at it, each sequence by itself.
struct RopeSpec {
  RopeLayout layout = RopeLayout::kUnspecified;
  int64_t dims = 0;  // even; 0: dk
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::kDefault;
  double factor = 1.0;                  // every scaling; LONGROPE: for its attention factor only
  double original_max_positions = 0.0;  // DYNAMIC: beyond it; LLAMA3, YARN, LONGROPE: as trained
  double low_freq_factor = 0.0;         // LLAMA3
  double high_freq_factor = 0.0;        // LLAMA3
  double beta_fast = 32.0;              // YARN
  double beta_slow = 1.0;               // YARN
  // Multiplies cosines and sines. Absent: YARN 0.1 ln(factor) + 1, LONGROPE
  // sqrt(1 + ln(factor) / ln(original_max_positions)), 1 where factor <= 1 and otherwise.
  std::optional<double> attention_factor;
  bool truncate = true;               // YARN: the ramp's ends are whole numbers
  std::vector<double> short_factors;  // LONGROPE [dims / 2], where L <= original_max_positions
  std::vector<double> long_factors;   // LONGROPE [dims / 2], beyond
};

// Of q and k before RoPE, with weights w (LayerMatrices): RMS x / rms * w, RMS_PLUS_ONE
// x / rms * (1 + w), LAYER_NORM (x - mean) / std * w + bias, where rms and std are square roots of
// a mean plus epsilon. Span: HEAD one weight row [dk] for all heads, HEADS a row for each head,
// WIDTH one norm over the whole projected width, which can't be LAYER_NORM.
struct QkNormSpec {
  NormKind kind = NormKind::kRms;
  QkNormSpan span = QkNormSpan::kHead;
  double epsilon = 1e-6;
  // WIDTH: rows of q and k whose heads were pruned. They stay in the mean square (LayerMatrices has
  // their weights), which is what it was before, and are nothing else.
  int64_t q_statistic_rows = 0;
  int64_t k_statistic_rows = 0;
};

// Of x before the layer: the layer's x has been through it, so that no forward looks at it. Kept
// where it is known, with its weights (LayerVectors), for audits, which tell by it that somebody
// applied it once more. The kinds are QkNormSpec's, over D; without weights they multiply by 1.
struct PreNormSpec {
  NormKind kind = NormKind::kRms;
  double epsilon = 1e-6;
};

// Added to the scores of head r, query position i and key position j (position ids, not indices):
// ALIBI slopes[r] * (j - i), T5_BUCKETS table[bucket(j - i)][r].
struct PositionBiasSpec {
  PositionBiasKind kind = PositionBiasKind::kAlibi;
  std::vector<float> slopes;   // ALIBI [H]
  int64_t buckets = 0;         // T5_BUCKETS: rows of the table
  int64_t max_distance = 0;    // T5_BUCKETS: from here on all share the last bucket
  bool bidirectional = false;  // T5_BUCKETS: keys after the query have buckets of their own
  bool scaled = false;         // ALIBI: multiplied by the scale as well
  // ALIBI as Falcon has it: bf16(bf16(slopes[r]) * bf16(j)), which knows no i.
  bool rounded_to_bf16 = false;
};

// A layer's settings. As given by a caller, several fields may be empty and mean a default; after
// ResolveSpec every vector has H entries and every width is set.
struct LayerSpec {
  int64_t d_model = 0;               // D
  int64_t d_memory = 0;              // width that enters k and v; 0: D
  int64_t d_out = 0;                 // width of y; 0: D
  int64_t heads = 0;                 // H
  int64_t kv_heads = 0;              // G; 0: H
  std::vector<int64_t> dk;           // [H]; one entry: all heads; empty: D/H
  std::vector<int64_t> dv;           // [H]; one entry: all heads; empty: dk
  std::vector<int64_t> query_to_kv;  // [H]; empty: floor(r / (H/G))
  std::vector<int64_t> head_ids;     // [H]; empty: 0..H-1
  std::optional<double> scale;       // absent: 1/sqrt(dk) of each head
  Orientation orientation = Orientation::kUnspecified;
  FusedLayout fused_layout = FusedLayout::kSeparate;
  MaskSpec mask;
  std::optional<RopeSpec> rope;
  std::optional<double> softcap;
  std::optional<double> clip;
  std::optional<QkNormSpec> qk_norm;
  std::optional<PreNormSpec> pre_norm;
  std::optional<PositionBiasSpec> position_bias;
  bool sinks = false;
  std::vector<float> gates;  // [H]; empty: none

  // Valid after ResolveSpec only.
  int64_t q_width() const;           // sum of dk over query heads
  int64_t k_width() const;           // sum of dk over key/value heads
  int64_t v_width() const;           // sum of dv over key/value heads
  int64_t z_width() const;           // sum of dv over query heads
  bool normed_over_width() const;    // a qk_norm of the span WIDTH
  int64_t q_statistic_rows() const;  // qk_norm's; 0 without one
  int64_t k_statistic_rows() const;
  bool equal_widths() const;           // all dk equal and all dv equal
  bool equal_key_widths() const;       // all dk equal
  int64_t kv_dk(int64_t group) const;  // key width of key/value head `group`
  int64_t kv_dv(int64_t group) const;
  double head_scale(int64_t head) const;  // spec.scale or 1/sqrt(dk[head])
};

// Fills the defaults in and checks every rule: sizes positive, H a multiple of G (or a map given),
// widths divide or are given, map and ids in range, equal widths within a group, RoPE dims even and
// <= dk with what its scaling needs, window >= 1 where causal, finite scale, orientation declared,
// as many slopes and gates as heads, rows of a statistic with the span WIDTH only. INVALID_ARGUMENT
// "field: rule; was VALUE"; UNIMPLEMENTED likewise for LAYER_NORM over a whole width.
absl::StatusOr<LayerSpec> ResolveSpec(LayerSpec spec);

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_SPEC_H_
