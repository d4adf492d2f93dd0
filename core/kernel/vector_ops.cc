// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/vector_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernel/vector_ops.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headwise {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 16 lanes at most: tiles are padded to multiples of 16 columns.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// 2^x for x <= 0: below 2^-126 exactly 0, NaN stays NaN. Coefficients: Cephes exp2f, relative error
// under 2e-7 on [-0.5, 0.5].
HWY_INLINE FloatVec Exp2(FloatTag d, FloatVec x) {
  const hn::RebindToSigned<FloatTag> di;
  const auto tiny = hn::Lt(x, hn::Set(d, -126.0f));
  const FloatVec rounded = hn::Round(x);
  const FloatVec f = hn::Sub(x, rounded);
  FloatVec p = hn::Set(d, 1.535336188319500e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339887440266574e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618437357674640e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550332471162809e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402264791363012e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931472028550421e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, rounded), hn::Set(di, 127));
  const FloatVec power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(tiny, hn::Mul(p, power));
}

// A user mask turns the raw scores into t = scale * score + additive, -inf where hidden. What the
// row may not see is selected away, never multiplied, so its bytes don't matter.
void ApplyMask(const SoftmaxRow& row) {
  float* scores = row.scores + row.begin;
  const int64_t count = row.end - row.begin;
  for (int64_t i = 0; i < count; ++i) scores[i] *= row.scale;
  if (row.additive != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      const float t = scores[i] + row.additive[i];
      scores[i] = row.additive[i] == kNegativeInfinity ? kNegativeInfinity : t;
    }
  }
  if (row.keep != nullptr) {
    const uint8_t hidden = row.keep_is_drop ? 1 : 0;
    for (int64_t i = 0; i < count; ++i) {
      scores[i] = row.keep[i] == hidden ? kNegativeInfinity : scores[i];
    }
  }
}

// Lanes of the vector at column j that lie in [begin, end).
HWY_INLINE hn::Mask<FloatTag> Visible(FloatTag d, int64_t j, int64_t begin, int64_t end) {
  const hn::RebindToSigned<FloatTag> di;
  const auto column = hn::Iota(di, static_cast<int32_t>(j));
  const auto inside = hn::And(hn::Ge(column, hn::Set(di, static_cast<int32_t>(begin))),
                              hn::Lt(column, hn::Set(di, static_cast<int32_t>(end))));
  return hn::RebindMask(d, inside);
}

float RowMax(const SoftmaxRow& row) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec lowest = hn::Set(d, kNegativeInfinity);
  FloatVec max = lowest;
  for (int64_t j = row.begin / lanes * lanes; j < row.end; j += lanes) {
    FloatVec t = hn::LoadU(d, row.scores + j);
    if (j < row.begin || j + lanes > row.end) {
      t = hn::IfThenElse(Visible(d, j, row.begin, row.end), t, lowest);
    }
    max = hn::Max(max, t);
  }
  return hn::ReduceMax(d, max);
}

// scores = exp(scale * scores - max) * factor over the visible columns, 0 elsewhere; returns the
// sum.
float RowExp(const SoftmaxRow& row, float scale, float max, float factor) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t first = row.begin / lanes * lanes;
  const int64_t last = std::min(row.width, (row.end + lanes - 1) / lanes * lanes);
  std::fill(row.scores, row.scores + first, 0.0f);
  if (last < row.width) std::fill(row.scores + last, row.scores + row.width, 0.0f);
  const FloatVec scale_v = hn::Set(d, scale);
  const FloatVec max_v = hn::Set(d, max);
  const FloatVec log2e = hn::Set(d, kLog2E);
  const FloatVec factor_v = hn::Set(d, factor);
  FloatVec sum = hn::Zero(d);
  for (int64_t j = first; j < last; j += lanes) {
    const FloatVec t = hn::LoadU(d, row.scores + j);
    FloatVec p = Exp2(d, hn::Mul(hn::MulSub(t, scale_v, max_v), log2e));
    if (j < row.begin || j + lanes > row.end) {
      p = hn::IfThenElseZero(Visible(d, j, row.begin, row.end), p);
    }
    sum = hn::Add(sum, p);
    hn::StoreU(hn::Mul(p, factor_v), d, row.scores + j);
  }
  return hn::ReduceSum(d, sum);
}

bool HasMask(const SoftmaxRow& row) { return row.keep != nullptr || row.additive != nullptr; }

// The row's t in place where a mask or a scale that isn't positive makes the short way wrong.
// Returns the scale that is still to be applied.
float PrepareRow(const SoftmaxRow& row) {
  if (HasMask(row) || !(row.scale > 0.0f)) {
    ApplyMask(row);
    return 1.0f;
  }
  return row.scale;
}

}  // namespace

float SoftmaxStepImpl(const SoftmaxRow& row, SoftmaxState* state) {
  if (row.begin >= row.end) {
    std::fill(row.scores, row.scores + row.width, 0.0f);
    return 1.0f;
  }
  const float scale = PrepareRow(row);
  const float block_max = RowMax(row) * scale;
  const float old_max = state->max;
  // Not std::max: a NaN maximum must not be lost against a number.
  const float new_max = block_max <= old_max ? old_max : block_max;
  if (new_max == kNegativeInfinity) {
    // Nothing seen yet, or only -inf: weights are exactly 0 (and a NaN that Max lost is NaN).
    state->sum += RowExp(row, scale, 0.0f, 1.0f);
    return 1.0f;
  }
  const float block_sum = RowExp(row, scale, new_max, 1.0f);
  const float factor = old_max == kNegativeInfinity
                           ? 1.0f
                           : (new_max == old_max ? 1.0f : std::exp(old_max - new_max));
  state->max = new_max;
  state->sum = state->sum * factor + block_sum;
  return factor;
}

void SoftmaxFinishImpl(const SoftmaxRow& row, const SoftmaxState& state) {
  if (row.begin >= row.end || state.sum == 0.0f) {
    std::fill(row.scores, row.scores + row.width, 0.0f);
    return;
  }
  RowExp(row, PrepareRow(row), state.max, 1.0f / state.sum);
}

void ScaleToImpl(const float* in, float factor, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = factor * in[i];
}

void AddInPlaceImpl(const float* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] += in[i];
}

bool AllFiniteImpl(const float* in, int64_t count) {
  // x - x is 0 for a finite x and NaN else; a sum of them is NaN if one is.
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVec sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const FloatVec x = hn::LoadU(d, in + i);
    sum = hn::Add(sum, hn::Sub(x, x));
  }
  float rest = hn::ReduceSum(d, sum);
  for (; i < count; ++i) rest += in[i] - in[i];
  return rest == 0.0f;
}

void AddImpl(const float* a, const float* b, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

bool AddToImpl(const float* a, const float* b, int64_t count, float* out) {
  AddImpl(a, b, count, out);
  return AllFiniteImpl(out, count);
}

void TransposeImpl(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
                   int64_t out_stride) {
  constexpr int64_t kBlock = 16;  // a block of rows is read line by line while it is in L1
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = std::min(rows, r0 + kBlock);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = r0; r < r1; ++r) out[c * out_stride + r] = in[r * in_stride + c];
    }
  }
}

// Products of kR rows with kS rows, summed in lanes over all tokens, then in f64.
template <int kR, int kS>
void GramBlock(const float* m, int64_t tokens, int64_t rows, int64_t width, int64_t r, int64_t s,
               double* gram) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVec sums[kR][kS];
  for (int i = 0; i < kR; ++i) {
    for (int j = 0; j < kS; ++j) sums[i][j] = hn::Zero(d);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const float* a = m + (t * rows + r) * width;
    const float* b = m + (t * rows + s) * width;
    for (int64_t c = 0; c < width; c += lanes) {
      FloatVec right[kS];
      for (int j = 0; j < kS; ++j) right[j] = hn::LoadU(d, b + j * width + c);
      for (int i = 0; i < kR; ++i) {
        const FloatVec left = hn::LoadU(d, a + i * width + c);
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
      gram[(r + i) * rows + s + j] += total;
    }
  }
}

void AddGramImpl(const float* m, int64_t tokens, int64_t rows, int64_t width, double* gram) {
  constexpr int kTile = 4;
  for (int64_t r = 0; r < rows;) {
    const bool wide_r = r + kTile <= rows;
    for (int64_t s = r; s < rows;) {
      const bool wide_s = s + kTile <= rows;
      if (wide_r && wide_s) {
        GramBlock<kTile, kTile>(m, tokens, rows, width, r, s, gram);
      } else if (wide_r) {
        GramBlock<kTile, 1>(m, tokens, rows, width, r, s, gram);
      } else {
        GramBlock<1, 1>(m, tokens, rows, width, r, s, gram);
      }
      s += wide_s && wide_r ? kTile : 1;
    }
    r += wide_r ? kTile : 1;
  }
}

const char* TargetNameImpl() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace headwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise {

HWY_EXPORT(SoftmaxStepImpl);
HWY_EXPORT(SoftmaxFinishImpl);
HWY_EXPORT(ScaleToImpl);
HWY_EXPORT(AddInPlaceImpl);
HWY_EXPORT(AllFiniteImpl);
HWY_EXPORT(AddImpl);
HWY_EXPORT(AddToImpl);
HWY_EXPORT(TransposeImpl);
HWY_EXPORT(AddGramImpl);
HWY_EXPORT(TargetNameImpl);

float SoftmaxStep(const SoftmaxRow& row, SoftmaxState* state) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxStepImpl)(row, state);
}

void SoftmaxFinish(const SoftmaxRow& row, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(SoftmaxFinishImpl)(row, state);
}

void ScaleInPlace(float factor, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleToImpl)(out, factor, count, out);
}

void ScaleTo(const float* in, float factor, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleToImpl)(in, factor, count, out);
}

void AddInPlace(const float* in, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(AddInPlaceImpl)(in, count, out);
}

void Add(const float* a, const float* b, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(AddImpl)(a, b, count, out);
}

bool AddTo(const float* a, const float* b, int64_t count, float* out) {
  return HWY_DYNAMIC_DISPATCH(AddToImpl)(a, b, count, out);
}

bool AllFinite(const float* in, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(AllFiniteImpl)(in, count);
}

void Transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
               int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(TransposeImpl)(in, in_stride, rows, columns, out, out_stride);
}

void AddGram(const float* m, int64_t tokens, int64_t rows, int64_t width, double* gram) {
  HWY_DYNAMIC_DISPATCH(AddGramImpl)(m, tokens, rows, width, gram);
}

const char* VectorTargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameImpl)(); }

}  // namespace headwise
#endif  // HWY_ONCE
