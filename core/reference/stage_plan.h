// SPDX-License-Identifier: Apache-2.0
// How the stages of an attention layer are carried out. The default is what the layer means; other
// choices are what wrong code does, for audits. Plain values.
#ifndef HEADWISE_CORE_REFERENCE_STAGE_PLAN_H_
#define HEADWISE_CORE_REFERENCE_STAGE_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace headwise {

// How q, k, v [T, width] become heads: the right way; as if the memory were [H, T, dk]; as
// [T, dk, H].
enum class SplitWay : uint8_t { kHeads, kNoTranspose, kFeatures };

// How heads become the rows that enter W_O: the right way; the memory [H, T, dv] read as
// [T, H dv]; feature by feature; the memory [H, N, dv] of the whole batch read as [N, H dv]; each
// place the sum of all.
enum class MergeWay : uint8_t { kHeads, kNoTranspose, kFeatures, kBatch, kSum };

// What attends to what: tokens; the heads of each token to each other, or only to those before.
enum class AttendWay : uint8_t { kTokens, kHeadsOfToken, kHeadsOfTokenCausal };

// The axis of the softmax, or what is done in its place. kTwiceVisible: the second softmax knows
// the mask, kTwiceAll: it doesn't. kOverflow: without the maximum taken off, in StagePlan::largest.
enum class SoftmaxWay : uint8_t {
  kKeys,
  kHeads,
  kQueries,
  kNone,
  kTwiceVisible,
  kTwiceAll,
  kOverflow,
};

// What the mask (causal order, window and the user's together) does: hides; hides what it should
// show; sets weights to 0 after the softmax; adds -1e9 to weights; multiplies scores by 0; lets the
// soft-cap bend -infinity to -cap.
enum class MaskWay : uint8_t {
  kHide,
  kInverted,
  kAfterSoftmax,
  kAddedAfterSoftmax,
  kMultiplied,
  kCapped,
};

// Where the sink goes: the denominator; nowhere; onto every score; onto z; a column, of which the
// first instead of the sink's own is cut off.
enum class SinkWay : uint8_t { kDenominator, kNowhere, kInScores, kInValue, kWrongColumn };

// The weights of a query that may see no key.
enum class EmptyRow : uint8_t { kZero, kAverage, kNan };

// Which numbers share a scale in int8. kWrongAxis: a scale for each input channel, used for the
// output channel of the same index.
enum class WeightScale : uint8_t { kNone, kChannel, kTensor, kWrongAxis };
enum class ActivationScale : uint8_t { kNone, kRow, kBatch };

// Which keys a query reaches by index; `shift` moves the causal diagonal.
struct Reach {
  bool causal = false;
  bool bottom_right = false;
  std::optional<int64_t> window;
  int64_t shift = 0;

  bool operator==(const Reach&) const = default;
};

struct StagePlan {
  SplitWay split = SplitWay::kHeads;
  bool rope_q = true, rope_k = true, rope_v = false;
  int64_t query_shift = 0;  // added to the positions of queries in RoPE
  WeightScale weight_scale = WeightScale::kNone;
  ActivationScale activation_scale = ActivationScale::kNone;
  bool wrap16 = false;  // integer sums modulo 2^16

  std::optional<Reach> reach;        // absent: the input's
  std::vector<double> score_factor;  // [H] multiplies the scale; empty: 1
  AttendWay attend = AttendWay::kTokens;
  MaskWay mask = MaskWay::kHide;
  SoftmaxWay softmax = SoftmaxWay::kKeys;
  double largest = 0.0;  // kOverflow: beyond it exp is infinite
  double least = 0.0;    // kOverflow: below it exp is 0
  SinkWay sink = SinkWay::kDenominator;
  EmptyRow empty_row = EmptyRow::kZero;
  double weight_factor = 1.0;  // multiplies p
  bool weights_in_u8 = false;  // p in steps of 1/255

  MergeWay merge = MergeWay::kHeads;
  std::vector<int64_t> order;        // place r of the concatenation holds head order[r]; empty: r
  bool skip_wo = false;              // y is the concatenation
  double bias_factor = 1.0;          // multiplies b_o
  bool add_x = false;                // y + x
  std::vector<int64_t> zero_slices;  // these of H slices of y are zero

  // Whether a row of y needs z of other rows.
  bool mixes_rows() const {
    return merge == MergeWay::kNoTranspose || merge == MergeWay::kBatch ||
           softmax == SoftmaxWay::kQueries || activation_scale == ActivationScale::kBatch;
  }
};

// How far right code may be from exact numbers: unit roundoffs of what enters (x, weights), of what
// a stage stores, and of running sums; and the smallest step near 0.
struct Numbers {
  double input = 0.0;
  double store = 0.0;
  double sum = 0.0;
  double tiny = 0.0;
  bool int8_projections = false;  // s8 weights a channel, s8 activations a row
};

}  // namespace headwise

#endif  // HEADWISE_CORE_REFERENCE_STAGE_PLAN_H_
