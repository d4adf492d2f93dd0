// SPDX-License-Identifier: Apache-2.0
// Sums over a stack of equal matrices, vectorised for the CPU found at run time (Highway). Pure and
// thread-safe.
#ifndef HEADWISE_CORE_KERNEL_STACK_OPS_H_
#define HEADWISE_CORE_KERNEL_STACK_OPS_H_

#include <cstdint>

namespace headwise {

// Rows of equal width, one matrix after the other: element (r, t, c) at
// data[r * matrix_stride + t * row_stride + c].
struct StackView {
  const float* data = nullptr;
  int64_t matrices = 0;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t matrix_stride = 0;
  int64_t row_stride = 0;
};

// out[t][c] = bias[c] + the sum over r of m[r][t][c], in order; rows of `out` are row_stride apart;
// `bias` [width] or null.
void SumMatrices(const StackView& m, const float* bias, float* out);

// gram[r * matrices + s] += sum over t, c of m[r][t][c] * m[s][t][c] for s >= r. f32 products are
// summed in lanes over one call, then in f64: keep rows * width <= 1024 a lane group of 16. `width`
// is a multiple of 16.
void AddGram(const StackView& m, double* gram);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_STACK_OPS_H_
