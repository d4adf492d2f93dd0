// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/vector_ops.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernel/vector_ops.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headwise {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
using Bf16Tag = hn::Repartition<hwy::bfloat16_t, FloatTag>;
using Bf16Vec = hn::Vec<Bf16Tag>;

int64_t FloatLanes() { return static_cast<int64_t>(hn::Lanes(FloatTag())); }

// f(vector, column) for a row, in place; the last vector may be short.
template <class F>
HWY_INLINE void ForRow(float* row, int64_t width, F f) {
  const FloatTag d;
  const int64_t lanes = FloatLanes();
  int64_t j = 0;
  for (; j + lanes <= width; j += lanes) hn::StoreU(f(hn::LoadU(d, row + j), j, lanes), d, row + j);
  if (j == width) return;
  const int64_t rest = width - j;
  hn::StoreN(f(hn::LoadN(d, row + j, static_cast<size_t>(rest)), j, rest), d, row + j,
             static_cast<size_t>(rest));
}

// Asks for the cache lines of row i + 8 where rows lie too far apart for the CPU to see the
// pattern.
HWY_INLINE void PrefetchRow(const RowsView& m, int64_t i) {
  constexpr int64_t kAhead = 8, kLine = 16;
  if (m.stride < 4 * m.width || i + kAhead >= m.rows) return;
  for (int64_t j = 0; j < m.width; j += kLine) __builtin_prefetch(m.row(i + kAhead) + j);
}

// `count` numbers of a row; what is beyond is zero.
HWY_INLINE FloatVec LoadSome(const float* from, int64_t count) {
  const FloatTag d;
  return count == FloatLanes() ? hn::LoadU(d, from)
                               : hn::LoadN(d, from, static_cast<size_t>(count));
}

// At most two vectors of numbers as one of bf16; what is beyond `count` is zero.
HWY_INLINE Bf16Vec LoadAsBf16(const float* from, int64_t count) {
  const int64_t first = std::min(count, FloatLanes());
  return hn::OrderedDemote2To(Bf16Tag(), LoadSome(from, first),
                              LoadSome(from + first, count - first));
}

// The sum of f(x) over a row.
template <class F>
HWY_INLINE float SumOf(const float* row, int64_t width, F f) {
  const FloatTag d;
  const int64_t lanes = FloatLanes();
  FloatVec sum = hn::Zero(d);
  int64_t j = 0;
  for (; j + lanes <= width; j += lanes) sum = hn::Add(sum, f(hn::LoadU(d, row + j)));
  float total = hn::ReduceSum(d, sum);
  if (j < width) {
    const auto inside = hn::FirstN(d, static_cast<size_t>(width - j));
    total += hn::ReduceSum(d, hn::IfThenElseZero(inside, f(LoadSome(row + j, width - j))));
  }
  return total;
}

HWY_INLINE FloatVec Square(FloatVec x) { return hn::Mul(x, x); }

}  // namespace

void AddBiasImpl(const float* bias, const RowsView& m) {
  for (int64_t i = 0; i < m.rows; ++i) {
    ForRow(m.row(i), m.width, [bias](FloatVec x, int64_t j, int64_t count) HWY_ATTR {
      return hn::Add(x, LoadSome(bias + j, count));
    });
  }
}

void ClampRowsImpl(float limit, const RowsView& m) {
  const FloatTag d;
  const FloatVec top = hn::Set(d, limit);
  const FloatVec bottom = hn::Set(d, -limit);
  for (int64_t i = 0; i < m.rows; ++i) {
    ForRow(m.row(i), m.width, [&](FloatVec x, int64_t, int64_t) HWY_ATTR {
      x = hn::IfThenElse(hn::Gt(x, top), top, x);
      return hn::IfThenElse(hn::Lt(x, bottom), bottom, x);
    });
  }
}

void ScaleRowsImpl(const float* factors, const RowsView& m) {
  const FloatTag d;
  for (int64_t i = 0; i < m.rows; ++i) {
    if (factors[i] == 1.0f) continue;
    const FloatVec factor = hn::Set(d, factors[i]);
    ForRow(m.row(i), m.width,
           [&](FloatVec x, int64_t, int64_t) HWY_ATTR { return hn::Mul(x, factor); });
  }
}

void NormRowsImpl(const QkNormSpec& norm, const float* weights, const float* bias,
                  const RowsView& m) {
  const FloatTag d;
  const float width = static_cast<float>(m.width);
  const FloatVec one = hn::Set(d, norm.kind == NormKind::kRmsPlusOne ? 1.0f : 0.0f);
  for (int64_t i = 0; i < m.rows; ++i) {
    float* row = m.row(i);
    float mean = 0.0f;
    if (norm.kind == NormKind::kLayerNorm) {
      mean = SumOf(row, m.width, [](FloatVec x) HWY_ATTR { return x; }) / width;
    }
    const FloatVec centre = hn::Set(d, mean);
    const float squares =
        SumOf(row, m.width, [&](FloatVec x) HWY_ATTR { return Square(hn::Sub(x, centre)); });
    const float spread = std::sqrt(squares / width + static_cast<float>(norm.epsilon));
    const FloatVec factor = hn::Set(d, 1.0f / spread);
    ForRow(row, m.width, [&](FloatVec x, int64_t j, int64_t count) HWY_ATTR {
      const FloatVec weight = hn::Add(LoadSome(weights + j, count), one);
      const FloatVec normed = hn::Mul(hn::Mul(hn::Sub(x, centre), factor), weight);
      return bias == nullptr ? normed : hn::Add(normed, LoadSome(bias + j, count));
    });
  }
}

void WeighRowsImpl(const QkNormSpec& norm, const float* weights, const RowsView& m,
                   int64_t squares_stride, float* squares) {
  const FloatTag d;
  const FloatVec one = hn::Set(d, norm.kind == NormKind::kRmsPlusOne ? 1.0f : 0.0f);
  for (int64_t i = 0; i < m.rows; ++i) {
    squares[i * squares_stride] =
        SumOf(m.row(i), m.width, [](FloatVec x) HWY_ATTR { return Square(x); });
    ForRow(m.row(i), m.width, [&](FloatVec x, int64_t j, int64_t count) HWY_ATTR {
      return hn::Mul(x, hn::Add(LoadSome(weights + j, count), one));
    });
  }
}

void SquareRowsImpl(const RowsView& m, int64_t squares_stride, float* squares) {
  for (int64_t i = 0; i < m.rows; ++i) {
    squares[i * squares_stride] =
        SumOf(m.row(i), m.width, [](FloatVec x) HWY_ATTR { return Square(x); });
  }
}

void RotateRowsImpl(RopeLayout layout, int64_t dims, const float* const* angles,
                    const RowsView& m) {
  const FloatTag d;
  const int64_t lanes = FloatLanes();
  const int64_t half = dims / 2;
  for (int64_t i = 0; i < m.rows; ++i) {
    float* row = m.row(i);
    const float* cosines = angles[i];
    if (layout == RopeLayout::kInterleaved) {
      ForRow(row, dims, [&](FloatVec x, int64_t j, int64_t count) HWY_ATTR {
        const FloatVec turned = hn::Mul(hn::Shuffle2301(x), LoadSome(cosines + dims + j, count));
        return hn::MulAdd(x, LoadSome(cosines + j, count), turned);
      });
      continue;
    }
    for (int64_t j = 0; j < half; j += lanes) {
      const int64_t count = std::min(lanes, half - j);
      const FloatVec c = LoadSome(cosines + j, count);
      const FloatVec s = LoadSome(cosines + half + j, count);
      const FloatVec x = LoadSome(row + j, count);
      const FloatVec y = LoadSome(row + half + j, count);
      const FloatVec turned_x = hn::MulSub(x, c, hn::Mul(y, s));
      const FloatVec turned_y = hn::MulAdd(y, c, hn::Mul(x, s));
      hn::StoreN(turned_x, d, row + j, static_cast<size_t>(count));
      hn::StoreN(turned_y, d, row + half + j, static_cast<size_t>(count));
    }
  }
}

void AddImpl(const float* a, const float* b, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

void ScaleToImpl(const float* in, float factor, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = factor * in[i];
}

void FlagRowsImpl(float limit, const RowsView& m, uint8_t* flags) {
  const FloatTag d;
  const int64_t lanes = FloatLanes();
  const FloatVec top = hn::Set(d, limit);
  for (int64_t i = 0; i < m.rows; ++i) {
    PrefetchRow(m, i);
    const float* row = m.row(i);
    auto within = hn::Le(hn::Zero(d), top);
    int64_t j = 0;
    for (; j + lanes <= m.width; j += lanes) {
      within = hn::And(within, hn::Le(hn::Abs(hn::LoadU(d, row + j)), top));
    }
    if (j < m.width) within = hn::And(within, hn::Le(hn::Abs(LoadSome(row + j, m.width - j)), top));
    flags[i] = hn::AllTrue(d, within) ? 0 : 1;
  }
}

void ScaleRowsToImpl(const float* factors, const RowsView& m, int64_t out_stride, float* out) {
  const FloatTag d;
  const int64_t lanes = FloatLanes();
  for (int64_t i = 0; i < m.rows; ++i, out += out_stride) {
    const float* row = m.row(i);
    const FloatVec factor = hn::Set(d, factors[i]);
    int64_t j = 0;
    for (; j + lanes <= m.width; j += lanes) {
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, row + j)), d, out + j);
    }
    if (j == m.width) continue;
    const int64_t rest = m.width - j;
    hn::StoreN(hn::Mul(factor, LoadSome(row + j, rest)), d, out + j, static_cast<size_t>(rest));
  }
}

void StoreRowsImpl(const RowsView& m, int64_t out_stride, float* out) {
  const FloatTag d;
  const int64_t lanes = FloatLanes();
  for (int64_t i = 0; i < m.rows; ++i, out += out_stride) {
    PrefetchRow(m, i);
    const float* row = m.row(i);
    int64_t j = 0;
    for (; j + lanes <= m.width; j += lanes) hn::StoreU(hn::LoadU(d, row + j), d, out + j);
    for (; j < out_stride; j += lanes) {
      const int64_t count = std::clamp<int64_t>(m.width - j, 0, lanes);
      hn::StoreN(LoadSome(row + j, count), d, out + j, static_cast<size_t>(out_stride - j));
    }
  }
}

void StoreRowsAsBf16Impl(const RowsView& m, int64_t out_stride, uint16_t* out) {
  const Bf16Tag db;
  const int64_t pair = 2 * FloatLanes();
  for (int64_t i = 0; i < m.rows; ++i, out += out_stride) {
    PrefetchRow(m, i);
    const float* row = m.row(i);
    auto* to = reinterpret_cast<hwy::bfloat16_t*>(out);
    int64_t j = 0;
    for (; j + pair <= m.width; j += pair) hn::StoreU(LoadAsBf16(row + j, pair), db, to + j);
    for (; j < out_stride; j += pair) {
      const int64_t count = std::clamp<int64_t>(m.width - j, 0, pair);
      hn::StoreN(LoadAsBf16(row + j, count), db, to + j, static_cast<size_t>(out_stride - j));
    }
  }
}

namespace {

// Columns [c, c + 4) of rows [r, r + 4) change places.
HWY_INLINE void Transpose4x4(const uint32_t* from, int64_t in_stride, uint32_t* to,
                             int64_t out_stride) {
  const hn::FixedTag<uint32_t, 4> d4;
  const hn::Repartition<uint64_t, hn::FixedTag<uint32_t, 4>> d2;
  const auto r0 = hn::LoadU(d4, from);
  const auto r1 = hn::LoadU(d4, from + in_stride);
  const auto r2 = hn::LoadU(d4, from + 2 * in_stride);
  const auto r3 = hn::LoadU(d4, from + 3 * in_stride);
  const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
  const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
  const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
  const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, to);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, to + out_stride);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, to + 2 * out_stride);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, to + 3 * out_stride);
}

}  // namespace

// Blocks of 4 x 4, a cache line of each row after the other: rows whose distance is a multiple of
// many lines share few sets of the first-level cache. What is left over goes one by one.
void Transpose32Impl(const uint32_t* in, int64_t in_stride, int64_t rows, int64_t columns,
                     uint32_t* out, int64_t out_stride) {
  constexpr int64_t kLine = 16, kAhead = 8;
  const int64_t whole_rows = rows / 4 * 4;
  const int64_t whole_columns = columns / 4 * 4;
  for (int64_t line = 0; line < whole_columns; line += kLine) {
    const int64_t end = std::min(whole_columns, line + kLine);
    for (int64_t r = 0; r < whole_rows; r += 4) {
      for (int64_t i = r; i < r + 4; ++i) __builtin_prefetch(in + (i + kAhead) * in_stride + line);
      for (int64_t c = line; c < end; c += 4) {
        Transpose4x4(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
      }
    }
  }
  for (int64_t r = whole_rows; r < rows; ++r) {
    for (int64_t c = 0; c < whole_columns; ++c) out[c * out_stride + r] = in[r * in_stride + c];
  }
  for (int64_t c = whole_columns; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

void InterleaveAsBf16Impl(const float* a, const float* b, int64_t count, int64_t out_count,
                          uint16_t* out) {
  const hn::Repartition<uint16_t, FloatTag> d16;
  const int64_t pair = 2 * FloatLanes();
  int64_t j = 0;
  for (; j + pair <= count; j += pair) {
    const auto from_a = hn::BitCast(d16, LoadAsBf16(a + j, pair));
    const auto from_b = hn::BitCast(d16, LoadAsBf16(b + j, pair));
    hn::StoreU(hn::InterleaveWholeLower(d16, from_a, from_b), d16, out + 2 * j);
    hn::StoreU(hn::InterleaveWholeUpper(d16, from_a, from_b), d16, out + 2 * j + pair);
  }
  for (; j < out_count; j += pair) {
    const int64_t rest = std::clamp<int64_t>(count - j, 0, pair);
    const auto from_a = hn::BitCast(d16, LoadAsBf16(a + j, rest));
    const auto from_b = hn::BitCast(d16, LoadAsBf16(b + j, rest));
    const int64_t room = 2 * std::min(out_count - j, pair);
    const int64_t low = std::min(room, pair);
    hn::StoreN(hn::InterleaveWholeLower(d16, from_a, from_b), d16, out + 2 * j,
               static_cast<size_t>(low));
    hn::StoreN(hn::InterleaveWholeUpper(d16, from_a, from_b), d16, out + 2 * j + low,
               static_cast<size_t>(room - low));
  }
}

const char* TargetNameImpl() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace headwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise {

HWY_EXPORT(AddBiasImpl);
HWY_EXPORT(ClampRowsImpl);
HWY_EXPORT(ScaleRowsImpl);
HWY_EXPORT(ScaleRowsToImpl);
HWY_EXPORT(NormRowsImpl);
HWY_EXPORT(WeighRowsImpl);
HWY_EXPORT(SquareRowsImpl);
HWY_EXPORT(RotateRowsImpl);
HWY_EXPORT(AddImpl);
HWY_EXPORT(ScaleToImpl);
HWY_EXPORT(FlagRowsImpl);
HWY_EXPORT(StoreRowsImpl);
HWY_EXPORT(StoreRowsAsBf16Impl);
HWY_EXPORT(Transpose32Impl);
HWY_EXPORT(InterleaveAsBf16Impl);
HWY_EXPORT(TargetNameImpl);

void AddBias(const float* bias, const RowsView& m) { HWY_DYNAMIC_DISPATCH(AddBiasImpl)(bias, m); }

void ClampRows(float limit, const RowsView& m) { HWY_DYNAMIC_DISPATCH(ClampRowsImpl)(limit, m); }

void ScaleRows(const float* factors, const RowsView& m) {
  HWY_DYNAMIC_DISPATCH(ScaleRowsImpl)(factors, m);
}

void ScaleRowsTo(const float* factors, const RowsView& m, int64_t out_stride, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleRowsToImpl)(factors, m, out_stride, out);
}

void NormRows(const QkNormSpec& norm, const float* weights, const float* bias, const RowsView& m) {
  HWY_DYNAMIC_DISPATCH(NormRowsImpl)(norm, weights, bias, m);
}

void WeighRows(const QkNormSpec& norm, const float* weights, const RowsView& m,
               int64_t squares_stride, float* squares) {
  HWY_DYNAMIC_DISPATCH(WeighRowsImpl)(norm, weights, m, squares_stride, squares);
}

void SquareRows(const RowsView& m, int64_t squares_stride, float* squares) {
  HWY_DYNAMIC_DISPATCH(SquareRowsImpl)(m, squares_stride, squares);
}

void RotateRows(RopeLayout layout, int64_t dims, const float* const* angles, const RowsView& m) {
  HWY_DYNAMIC_DISPATCH(RotateRowsImpl)(layout, dims, angles, m);
}

void Add(const float* a, const float* b, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(AddImpl)(a, b, count, out);
}

void ScaleTo(const float* in, float factor, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleToImpl)(in, factor, count, out);
}

void FlagRows(float limit, const RowsView& m, uint8_t* flags) {
  HWY_DYNAMIC_DISPATCH(FlagRowsImpl)(limit, m, flags);
}

void StoreRows(const RowsView& m, int64_t out_stride, float* out) {
  HWY_DYNAMIC_DISPATCH(StoreRowsImpl)(m, out_stride, out);
}

void StoreRowsAsBf16(const RowsView& m, int64_t out_stride, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(StoreRowsAsBf16Impl)(m, out_stride, out);
}

void Transpose32(const void* in, int64_t in_stride, int64_t rows, int64_t columns, void* out,
                 int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(Transpose32Impl)(static_cast<const uint32_t*>(in), in_stride, rows, columns,
                                        static_cast<uint32_t*>(out), out_stride);
}

void InterleaveAsBf16(const float* a, const float* b, int64_t count, int64_t out_count,
                      uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(InterleaveAsBf16Impl)(a, b, count, out_count, out);
}

const char* VectorTargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameImpl)(); }

}  // namespace headwise
#endif  // HWY_ONCE
