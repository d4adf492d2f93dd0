// SPDX-License-Identifier: Apache-2.0
// The running softmax between the two products of a score tile, vectorised for the CPU found at run
// time (Highway).
#ifndef HEADWISE_CORE_KERNEL_SOFTMAX_H_
#define HEADWISE_CORE_KERNEL_SOFTMAX_H_

#include <array>
#include <cstdint>
#include <numbers>

#include "core/kernel/lines_ahead.h"
#include "core/kernel/tile_sizes.h"

namespace headwise {

// What turns q·k of a row into t, the logit before the mask: t = scale * q·k + bias, then
// softcap * tanh(t / softcap) where a soft-cap is set.
struct ScoreTransform {
  float scale = 1.0f;
  const float* bias = nullptr;  // of the row's columns; null: none
  float softcap = 0.0f;         // 0: none
};

// The user's mask of a row, from its first visible column.
struct RowMask {
  const uint8_t* keep = nullptr;    // 1 = may be seen; null: all
  const float* additive = nullptr;  // added to t, -inf hides; null: none
  bool keep_is_drop = false;        // `keep` has the opposite meaning
};

// State of the tile's query rows over their key blocks. After the last block z = output / sum.
struct SoftmaxState {
  // Of t so far (in plain tiles of q·k: see SoftmaxTile); -inf before the first visible key.
  std::array<float, kQueryTile> max;
  std::array<float, kQueryTile> sum;     // of exp(t - max); 0 exactly if the row saw no key
  std::array<float, kQueryTile> factor;  // of the last block: what earlier output is multiplied by

  // For a first block. `sink` (null: none; not with plain tiles) is a logit that takes its share of
  // every row as a key without a value would.
  static SoftmaxState Start(const float* sink);
};

// Rows [0, rows) of a score tile with their visible columns and everything that acts on a score.
struct SoftmaxTile {
  float* scores = nullptr;  // [rows, stride]: q·k in, exp(t - max) out, 0 in hidden columns
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t width = 0;               // a multiple of kKeyStep
  const int32_t* begin = nullptr;  // [rows]: the row may see columns [begin, end)
  const int32_t* end = nullptr;
  // Where the weights go as bf16 [rows, bf16_stride] (then nothing is written to `scores`), rounded
  // to nearest even; the sums are those of the rounded weights, so that they weigh v exactly.
  uint16_t* bf16 = nullptr;
  int64_t bf16_stride = 0;

  float scale = 1.0f;
  // Nothing but the scale acts on a score, and it is positive: t is never made, the exponent takes
  // the scale in, and maxima are those of q·k. One value for all blocks of a sequence.
  bool plain = true;

  // What a difference from the maximum is multiplied by to be the exponent of a power of two. The
  // difference is taken first, so that the largest key's weight is exactly 1, and so that large
  // finite logits don't overflow.
  float unit() const { return (plain ? scale : 1.0f) * std::numbers::log2e_v<float>; }

  const float* const* bias = nullptr;  // [rows]: from column 0 of each row; null: none
  float softcap = 0.0f;
  const RowMask* masks = nullptr;  // [rows]; null: none

  LinesAhead* ahead = nullptr;  // asked for between rows; null: nothing
  // Numbers that the caller will write for each row: asked for with it. Null: none.
  float* results = nullptr;
  int64_t results_stride = 0, results_width = 0;
};

// Takes the tile into rows [first_row, first_row + tile.rows) of `state`: new maxima, sums, and the
// factors by which the rows' output so far must be multiplied (1 if the maximum stands). NaN scores
// that a row sees stay NaN; hidden ones are inert whatever their bytes.
// Source: online softmax, Milakov & Gimelshein 2018. Thread-safe for different tiles and states.
void SoftmaxStep(const SoftmaxTile& tile, int64_t first_row, SoftmaxState* state);

// out[j] = t of in[j], the logit before the mask. In place is fine.
void TransformScores(const ScoreTransform& transform, const float* in, int64_t count, float* out);

// p[j] *= 2^(unit * (max_then - max_now)) / sum: finished weights from those that a block left.
void FinishWeights(float unit, float max_then, float max_now, float sum, int64_t count, float* p);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_SOFTMAX_H_
