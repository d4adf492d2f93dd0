// SPDX-License-Identifier: Apache-2.0
// Elementwise work between the tile products, vectorised for the CPU found at run time (Highway).
// All functions are pure and thread-safe; pointers need no alignment.
#ifndef HEADWISE_CORE_KERNEL_VECTOR_OPS_H_
#define HEADWISE_CORE_KERNEL_VECTOR_OPS_H_

#include <cstdint>

namespace headwise {

// One row of a score tile on its way through the running softmax.
struct SoftmaxRow {
  float* scores;          // [width]: raw q·k in, exp(t - max) out; 0 outside [begin, end)
  int64_t width;          // of the tile, padding included
  int64_t begin, end;     // columns that the row may see
  float scale;            // t = scale * score (+ additive)
  const uint8_t* keep;    // [end - begin] from column `begin`: 1 = may be seen; or null
  const float* additive;  // [end - begin] from column `begin`: added to t, -inf hides; or null
  bool keep_is_drop;      // `keep` has the opposite meaning: 1 = hidden
};

// State of one query row over its key blocks. After the last block z = output / sum, and sum = 0
// exactly if the row saw no key.
struct SoftmaxState {
  float max;  // of t so far; -inf before the first visible key
  float sum;  // of exp(t - max)
};

// Takes the row's next block into `state`; returns what the output so far must be multiplied by
// (exp(old max - new max); 1 if the maximum stands). NaN scores that the row sees stay NaN; hidden
// ones are inert. Source: online softmax, Milakov & Gimelshein 2018.
float SoftmaxStep(const SoftmaxRow& row, SoftmaxState* state);

// The finished weights of a row's block, p = exp(t - max) / sum (0 if sum is 0), into row.scores.
void SoftmaxFinish(const SoftmaxRow& row, const SoftmaxState& state);

// out[i] *= factor.
void ScaleInPlace(float factor, int64_t count, float* out);

// out[i] = factor * in[i].
void ScaleTo(const float* in, float factor, int64_t count, float* out);

// out[i] += in[i].
void AddInPlace(const float* in, int64_t count, float* out);

// out[i] = a[i] + b[i].
void Add(const float* a, const float* b, int64_t count, float* out);

// The same; true if every result is finite.
bool AddTo(const float* a, const float* b, int64_t count, float* out);

// True if every element is finite.
bool AllFinite(const float* in, int64_t count);

// Transposes in [rows, columns] (stride in_stride) to out [columns, rows] (stride out_stride).
void Transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
               int64_t out_stride);

// Sums of products of all pairs of rows over many short stretches, in f64 at the end of each group:
// gram[r * rows + s] += sum over t < tokens, c < width of m[t][r][c] * m[t][s][c] for s >= r, where
// m is [tokens, rows, width]. f32 products are summed in lanes over one call: keep
// tokens * width <= 1024 a lane group of 16.
void AddGram(const float* m, int64_t tokens, int64_t rows, int64_t width, double* gram);

// Name of the instruction set that Highway picked, for the bench's header.
const char* VectorTargetName();

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_VECTOR_OPS_H_
