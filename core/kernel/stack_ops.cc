// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/stack_ops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernel/stack_ops.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headwise {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

// Products of kR rows with kS rows, summed in lanes over all tokens, then in f64.
template <int kR, int kS>
void GramBlock(const StackView& m, int64_t r, int64_t s, double* gram) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVec sums[kR][kS];
  for (int i = 0; i < kR; ++i) {
    for (int j = 0; j < kS; ++j) sums[i][j] = hn::Zero(d);
  }
  for (int64_t t = 0; t < m.rows; ++t) {
    const float* a = m.data + r * m.matrix_stride + t * m.row_stride;
    const float* b = m.data + s * m.matrix_stride + t * m.row_stride;
    for (int64_t c = 0; c < m.width; c += lanes) {
      FloatVec right[kS];
      for (int j = 0; j < kS; ++j) right[j] = hn::LoadU(d, b + j * m.matrix_stride + c);
      for (int i = 0; i < kR; ++i) {
        const FloatVec left = hn::LoadU(d, a + i * m.matrix_stride + c);
        for (int j = 0; j < kS; ++j) sums[i][j] = hn::MulAdd(left, right[j], sums[i][j]);
      }
    }
  }
  HWY_ALIGN float lane[16];
  for (int i = 0; i < kR; ++i) {
    for (int j = 0; j < kS; ++j) {
      if (s + j < r + i) continue;
      hn::Store(sums[i][j], d, lane);
      double total = 0.0;
      for (int64_t l = 0; l < lanes; ++l) total += lane[l];
      gram[(r + i) * m.matrices + s + j] += total;
    }
  }
}

void AddGramImpl(const StackView& m, double* gram) {
  constexpr int kTile = 4;
  const int64_t rows = m.matrices;
  for (int64_t r = 0; r < rows;) {
    const bool wide_r = r + kTile <= rows;
    for (int64_t s = r; s < rows;) {
      const bool wide_s = s + kTile <= rows;
      if (wide_r && wide_s) {
        GramBlock<kTile, kTile>(m, r, s, gram);
      } else if (wide_r) {
        GramBlock<kTile, 1>(m, r, s, gram);
      } else {
        GramBlock<1, 1>(m, r, s, gram);
      }
      s += wide_s && wide_r ? kTile : 1;
    }
    r += wide_r ? kTile : 1;
  }
}

void SumMatricesImpl(const StackView& m, const float* bias, float* out) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t t = 0; t < m.rows; ++t) {
    for (int64_t c = 0; c < m.width; c += lanes) {
      const int64_t count = std::min(lanes, m.width - c);
      FloatVec sum =
          bias == nullptr ? hn::Zero(d) : hn::LoadN(d, bias + c, static_cast<size_t>(count));
      const float* from = m.data + t * m.row_stride + c;
      for (int64_t r = 0; r < m.matrices; ++r, from += m.matrix_stride) {
        sum = hn::Add(sum, hn::LoadN(d, from, static_cast<size_t>(count)));
      }
      hn::StoreN(sum, d, out + t * m.row_stride + c, static_cast<size_t>(count));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise {

HWY_EXPORT(SumMatricesImpl);
HWY_EXPORT(AddGramImpl);

void SumMatrices(const StackView& m, const float* bias, float* out) {
  HWY_DYNAMIC_DISPATCH(SumMatricesImpl)(m, bias, out);
}

void AddGram(const StackView& m, double* gram) { HWY_DYNAMIC_DISPATCH(AddGramImpl)(m, gram); }

}  // namespace headwise
#endif  // HWY_ONCE
