// SPDX-License-Identifier: Apache-2.0
// Elementwise work between the tile products, vectorised for the CPU found at run time (Highway).
// All functions are pure and thread-safe; pointers need no alignment; `stride` counts elements from
// one row to the next.
#ifndef HEADWISE_CORE_KERNEL_VECTOR_OPS_H_
#define HEADWISE_CORE_KERNEL_VECTOR_OPS_H_

#include <cstdint>

#include "core/layer/spec.h"

namespace headwise {

// A matrix of f32 with rows of `width` numbers.
struct RowsView {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;

  float* row(int64_t i) const { return data + i * stride; }
};

// Each row += bias [width].
void AddBias(const float* bias, const RowsView& m);

// Each element clamped to [-limit, limit]; NaN stays NaN.
void ClampRows(float limit, const RowsView& m);

// Row i *= factors[i]. Rows whose factor is 1 are left alone.
void ScaleRows(const float* factors, const RowsView& m);

// Row i of `out` = factors[i] * row i.
void ScaleRowsTo(const float* factors, const RowsView& m, int64_t out_stride, float* out);

// Each row normalised by its own mean square (or variance) plus epsilon; `weights` [width], `bias`
// [width] or null. Sums in f32 lanes.
void NormRows(const QkNormSpec& norm, const float* weights, const float* bias, const RowsView& m);

// Each row *= weights (or 1 + weights for kRmsPlusOne); squares[i * squares_stride] = the sum of
// the squares that stood there before.
void WeighRows(const QkNormSpec& norm, const float* weights, const RowsView& m,
               int64_t squares_stride, float* squares);

// squares[i * squares_stride] = the sum of the squares of row i.
void SquareRows(const RowsView& m, int64_t squares_stride, float* squares);

// Turns the first `dims` features of row i by angles[i]: HALF cos [dims/2] then sin [dims/2];
// INTERLEAVED cos of each feature [dims], then its signed sin [dims].
void RotateRows(RopeLayout layout, int64_t dims, const float* const* angles, const RowsView& m);

// out[i] = a[i] + b[i].
void Add(const float* a, const float* b, int64_t count, float* out);

// out[i] = factor * in[i].
void ScaleTo(const float* in, float factor, int64_t count, float* out);

// flags[i] = 0 if every element of row i is a number of magnitude <= limit, else 1.
void FlagRows(float limit, const RowsView& m, uint8_t* flags);

// Rows `out_stride` apart; what is beyond a row is zero.
void StoreRows(const RowsView& m, int64_t out_stride, float* out);

// The same, rounded to bf16 (nearest, ties to even).
void StoreRowsAsBf16(const RowsView& m, int64_t out_stride, uint16_t* out);

// Transposes 32-bit elements: in [rows, columns] to out [columns, rows].
void Transpose32(const void* in, int64_t in_stride, int64_t rows, int64_t columns, void* out,
                 int64_t out_stride);

// out[2j] = a[j], out[2j + 1] = b[j], rounded to bf16: two rows of an interleaved panel, which is
// `out_count` wide; what is beyond `count` is zero.
void InterleaveAsBf16(const float* a, const float* b, int64_t count, int64_t out_count,
                      uint16_t* out);

// Name of the instruction set that Highway picked, for the bench's header.
const char* VectorTargetName();

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_VECTOR_OPS_H_
