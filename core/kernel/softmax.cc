// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernel/softmax.cc"
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
using Bf16Tag = hn::Repartition<hwy::bfloat16_t, FloatTag>;

// Lines that a row asks for ahead. With dk = dv = 64 in f32 a head's q, kt and v are as many as its
// rows ask for while they see one block of keys.
constexpr int64_t kLinesARow = 12;

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// 1.5 * 2^23 + 127: adding it to a small number leaves the number's nearest integer, plus the bias
// of a float's exponent, in the low bits of the sum.
constexpr float kRoundToExponent = 12582912.0f + 127.0f;

// 2^f on [-0.5, 0.5] as 1 + f * (…), least largest relative error: with kAccurate 1.6e-7 in f32
// arithmetic, else 1.0e-4, a twentieth of what rounding to bf16 adds.
template <bool kAccurate>
HWY_INLINE FloatVec Exp2Fraction(FloatTag d, FloatVec f) {
  FloatVec p;
  if constexpr (kAccurate) {
    p = hn::MulAdd(hn::Set(d, 0.00132647273f), f, hn::Set(d, 0.00967151299f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.0555073358f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.240222424f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.693147004f));
  } else {
    p = hn::MulAdd(hn::Set(d, 0.0550089329f), f, hn::Set(d, 0.242210954f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.693282902f));
  }
  return hn::MulAdd(p, f, hn::Set(d, 1.0f));
}

// 2^x for x <= 0, and a little above for rounding; below -126.5 exactly 0; NaN stays NaN, for which
// the order of Max's arguments matters (x86: of a NaN and a number the second).
template <bool kAccurate>
HWY_INLINE FloatVec Exp2(FloatTag d, FloatVec x) {
  const hn::RebindToUnsigned<FloatTag> du;
  // From here down the exponent is 0, and so the power of two that it stands for.
  x = hn::Max(hn::Set(d, -127.0f), x);
  const FloatVec shifted = hn::Add(x, hn::Set(d, kRoundToExponent));
  const FloatVec f = hn::Sub(x, hn::Sub(shifted, hn::Set(d, kRoundToExponent)));
  const FloatVec power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  return hn::Mul(Exp2Fraction<kAccurate>(d, f), power);
}

// tanh(x) = sign(x) (1 - e) / (1 + e) with e = exp(-2 |x|); near 0, where that cancels, the first
// terms of its odd series. Relative error under 1e-6.
HWY_INLINE FloatVec Tanh(FloatTag d, FloatVec x) {
  const FloatVec size = hn::Abs(x);
  const FloatVec one = hn::Set(d, 1.0f);
  const FloatVec e = Exp2<true>(d, hn::Mul(size, hn::Set(d, -2.0f * std::numbers::log2e_v<float>)));
  const FloatVec large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  const FloatVec x2 = hn::Mul(x, x);
  FloatVec p = hn::Set(d, 62.0f / 2835.0f);
  p = hn::MulAdd(p, x2, hn::Set(d, -17.0f / 315.0f));
  p = hn::MulAdd(p, x2, hn::Set(d, 2.0f / 15.0f));
  p = hn::MulAdd(p, x2, hn::Set(d, -1.0f / 3.0f));
  const FloatVec small = hn::MulAdd(hn::Mul(p, x2), x, x);
  return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.25f)), small, large);
}

HWY_INLINE FloatVec Transform(FloatTag d, const ScoreTransform& transform, FloatVec raw,
                              FloatVec bias) {
  FloatVec t = hn::MulAdd(raw, hn::Set(d, transform.scale), bias);
  if (transform.softcap != 0.0f) {
    const FloatVec cap = hn::Set(d, transform.softcap);
    t = hn::Mul(cap, Tanh(d, hn::Div(t, cap)));
  }
  return t;
}

void TransformRow(const ScoreTransform& transform, const float* in, int64_t count, float* out) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec zero = hn::Zero(d);
  int64_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const FloatVec bias = transform.bias == nullptr ? zero : hn::LoadU(d, transform.bias + j);
    hn::StoreU(Transform(d, transform, hn::LoadU(d, in + j), bias), d, out + j);
  }
  if (j == count) return;
  const size_t rest = static_cast<size_t>(count - j);
  const FloatVec bias = transform.bias == nullptr ? zero : hn::LoadN(d, transform.bias + j, rest);
  hn::StoreN(Transform(d, transform, hn::LoadN(d, in + j, rest), bias), d, out + j, rest);
}

// What the row may not see is selected away, never multiplied, so its bytes don't matter.
void ApplyMask(const RowMask& mask, int64_t count, float* t) {
  if (mask.additive != nullptr) {
    for (int64_t j = 0; j < count; ++j) {
      const float moved = t[j] + mask.additive[j];
      t[j] = mask.additive[j] == kNegativeInfinity ? kNegativeInfinity : moved;
    }
  }
  if (mask.keep != nullptr) {
    const uint8_t hidden = mask.keep_is_drop ? 1 : 0;
    for (int64_t j = 0; j < count; ++j) {
      t[j] = mask.keep[j] == hidden ? kNegativeInfinity : t[j];
    }
  }
}

// Lanes of the vector at column j that lie in [begin, end).
HWY_INLINE hn::Mask<FloatTag> Visible(FloatTag d, int64_t j, int32_t begin, int32_t end) {
  const hn::RebindToSigned<FloatTag> di;
  const auto column = hn::Iota(di, static_cast<int32_t>(j));
  return hn::RebindMask(
      d, hn::And(hn::Ge(column, hn::Set(di, begin)), hn::Lt(column, hn::Set(di, end))));
}

// Where a row's weights go: summed, and stored as f32 in place or rounded to bf16.
template <bool kBf16>
struct WeightSink {
  FloatTag d;
  Bf16Tag db;
  float* place;
  uint16_t* bf16;
  FloatVec sum0 = hn::Zero(FloatTag()), sum1 = hn::Zero(FloatTag());

  HWY_INLINE hwy::bfloat16_t* Bf16Place(int64_t j) {
    return reinterpret_cast<hwy::bfloat16_t*>(bf16) + j;
  }

  // Two vectors from column j.
  HWY_INLINE void Put(int64_t j, FloatVec p0, FloatVec p1) {
    if constexpr (kBf16) {
      const auto rounded = hn::OrderedDemote2To(db, p0, p1);
      const auto ones = hn::Set(db, hwy::BF16FromF32(1.0f));
      sum0 = hn::ReorderWidenMulAccumulate(d, rounded, ones, sum0, sum1);
      hn::StoreU(rounded, db, Bf16Place(j));
    } else {
      sum0 = hn::Add(sum0, p0);
      sum1 = hn::Add(sum1, p1);
      hn::StoreU(p0, d, place + j);
      hn::StoreU(p1, d, place + j + static_cast<int64_t>(hn::Lanes(d)));
    }
  }

  // The last vector of a row with an odd number of them.
  HWY_INLINE void PutLast(int64_t j, FloatVec p) {
    if constexpr (kBf16) {
      const auto rounded = hn::OrderedDemote2To(db, p, hn::Zero(d));
      const auto ones = hn::Set(db, hwy::BF16FromF32(1.0f));
      sum0 = hn::ReorderWidenMulAccumulate(d, rounded, ones, sum0, sum1);
      hn::StoreN(rounded, db, Bf16Place(j), hn::Lanes(d));
    } else {
      sum0 = hn::Add(sum0, p);
      hn::StoreU(p, d, place + j);
    }
  }

  HWY_INLINE float Sum() { return hn::ReduceSum(d, hn::Add(sum0, sum1)); }
};

// Weights exp(t - max) of a row that sees columns [begin, end) of [0, width), kWhole: all of them;
// the rest are 0. Returns their sum, whose order doesn't depend on what the row sees.
template <bool kBf16, bool kWhole>
HWY_INLINE float ExpRow(const SoftmaxTile& tile, int64_t row, float max) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t pair = 2 * lanes;
  const float* scores = tile.scores + row * tile.stride;
  WeightSink<kBf16> sink{.d = {},
                         .db = {},
                         .place = tile.scores + row * tile.stride,
                         .bf16 = kBf16 ? tile.bf16 + row * tile.bf16_stride : nullptr};
  const int32_t begin = kWhole ? 0 : tile.begin[row];
  const int64_t end = kWhole ? tile.width : tile.end[row];
  const FloatVec unit = hn::Set(d, tile.unit());
  const FloatVec max_v = hn::Set(d, max);
  const auto weight = [&](int64_t j) HWY_ATTR {
    return Exp2<!kBf16>(d, hn::Mul(hn::Sub(hn::LoadU(d, scores + j), max_v), unit));
  };
  const auto visible = [&](int64_t j) HWY_ATTR {
    return hn::IfThenElseZero(Visible(d, j, begin, static_cast<int32_t>(end)), weight(j));
  };
  const FloatVec zero = hn::Zero(d);
  int64_t j = 0;
  for (; j + pair <= begin; j += pair) sink.Put(j, zero, zero);
  if (j < begin && j + pair <= tile.width) {
    sink.Put(j, visible(j), visible(j + lanes));
    j += pair;
  }
  for (; j + pair <= end; j += pair) {
    // The row that MaxOfFour reads next comes from the second-level cache.
    __builtin_prefetch(scores + 4 * tile.stride + j);
    __builtin_prefetch(scores + 4 * tile.stride + j + lanes);
    sink.Put(j, weight(j), weight(j + lanes));
  }
  if (!kWhole && j < end && j + pair <= tile.width) {
    sink.Put(j, visible(j), visible(j + lanes));
    j += pair;
  }
  for (; !kWhole && j + pair <= tile.width; j += pair) sink.Put(j, zero, zero);
  if (j < tile.width) sink.PutLast(j, kWhole ? weight(j) : visible(j));
  return sink.Sum();
}

// `max`, or the largest score of columns [from, to) in [begin, end) where that is larger; `from` is
// a multiple of a vector.
HWY_INLINE FloatVec VisibleMax(const float* scores, int64_t from, int64_t to, int32_t begin,
                               int32_t end, FloatVec max) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec lowest = hn::Set(d, kNegativeInfinity);
  for (int64_t j = from; j < to; j += lanes) {
    FloatVec t = hn::LoadU(d, scores + j);
    if (j < begin || j + lanes > end) t = hn::IfThenElse(Visible(d, j, begin, end), t, lowest);
    max = hn::Max(max, t);
  }
  return max;
}

// Largest visible score of a row; -inf if it sees none.
float MaxOfOne(const SoftmaxTile& tile, int64_t row) {
  const FloatTag d;
  const int32_t begin = tile.begin[row], end = tile.end[row];
  const int64_t from = RoundDown(begin, static_cast<int64_t>(hn::Lanes(d)));
  return hn::ReduceMax(d, VisibleMax(tile.scores + row * tile.stride, from, end, begin, end,
                                     hn::Set(d, kNegativeInfinity)));
}

// The same of four rows, each of which sees something. What all four see they read together.
template <bool kWhole>
HWY_INLINE void MaxOfFour(const SoftmaxTile& tile, int64_t row, float* max) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = tile.stride;
  const float* scores = tile.scores + row * stride;
  const int32_t* begin = tile.begin + row;
  const int32_t* end = tile.end + row;
  const int64_t first = kWhole ? 0 : RoundUp(*std::max_element(begin, begin + 4), lanes);
  const int64_t last = kWhole ? tile.width : RoundDown(*std::min_element(end, end + 4), lanes);
  if (first >= last) {
    for (int64_t i = 0; i < 4; ++i) max[i] = MaxOfOne(tile, row + i);
    return;
  }
  FloatVec m0 = hn::LoadU(d, scores + first);
  FloatVec m1 = hn::LoadU(d, scores + stride + first);
  FloatVec m2 = hn::LoadU(d, scores + 2 * stride + first);
  FloatVec m3 = hn::LoadU(d, scores + 3 * stride + first);
  for (int64_t j = first + lanes; j < last; j += lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, scores + j));
    m1 = hn::Max(m1, hn::LoadU(d, scores + stride + j));
    m2 = hn::Max(m2, hn::LoadU(d, scores + 2 * stride + j));
    m3 = hn::Max(m3, hn::LoadU(d, scores + 3 * stride + j));
  }
  const auto finish = [&](int64_t i, FloatVec m) HWY_ATTR {
    if (!kWhole) {
      const float* at = scores + i * stride;
      m = VisibleMax(at, RoundDown(begin[i], lanes), first, begin[i], end[i], m);
      m = VisibleMax(at, last, end[i], begin[i], end[i], m);
    }
    max[i] = hn::ReduceMax(d, m);
  };
  finish(0, m0);
  finish(1, m1);
  finish(2, m2);
  finish(3, m3);
}

float Exp2OfOne(float x) { return hn::GetLane(Exp2<true>(FloatTag(), hn::Set(FloatTag(), x))); }

// Moves a row's state to the block's maximum; returns the maximum that its weights are taken from.
HWY_INLINE float TakeMax(float unit, float block_max, size_t row, SoftmaxState* state) {
  const float old_max = state->max[row];
  // Not std::max: a NaN maximum must not be lost against a number.
  const float new_max = block_max <= old_max ? old_max : block_max;
  state->max[row] = new_max;
  state->factor[row] = new_max == old_max || old_max == kNegativeInfinity
                           ? 1.0f
                           : Exp2OfOne((old_max - new_max) * unit);
  // Only -inf so far: weights are exactly 0 (and a NaN that Max lost is NaN).
  return new_max == kNegativeInfinity ? 0.0f : new_max;
}

HWY_INLINE void TakeSum(float block_sum, size_t row, SoftmaxState* state) {
  state->sum[row] = state->sum[row] * state->factor[row] + block_sum;
}

void AskForResults(const SoftmaxTile& tile, int64_t row) {
  const float* results = tile.results + row * tile.results_stride;
  for (int64_t d = 0; d < tile.results_width; d += 16) __builtin_prefetch(results + d, /*rw=*/1);
}

// `rows` rows from their maxima.
template <bool kBf16, bool kWhole>
HWY_INLINE void FinishRows(const SoftmaxTile& tile, int64_t row, int64_t rows, float* max,
                           size_t at, SoftmaxState* state) {
  for (int64_t i = 0; i < rows; ++i) {
    max[i] = TakeMax(tile.unit(), max[i], at + static_cast<size_t>(i), state);
  }
  for (int64_t i = 0; i < rows; ++i) {
    TakeSum(ExpRow<kBf16, kWhole>(tile, row + i, max[i]), at + static_cast<size_t>(i), state);
    if (tile.results != nullptr) AskForResults(tile, row + i);
    if (tile.ahead != nullptr) tile.ahead->Ask(kLinesARow);
  }
}

// A row that sees nothing of the block.
template <bool kBf16>
void SkipRow(const SoftmaxTile& tile, int64_t row, size_t at, SoftmaxState* state) {
  state->factor[at] = 1.0f;
  if (kBf16) {
    std::fill_n(tile.bf16 + row * tile.bf16_stride, tile.width, uint16_t{0});
  } else {
    std::fill_n(tile.scores + row * tile.stride, tile.width, 0.0f);
  }
}

template <bool kBf16>
void StepRows(const SoftmaxTile& tile, int64_t first_row, SoftmaxState* state) {
  const auto four = [&tile](int64_t row, auto holds) {
    return row + 4 <= tile.rows && holds(row) && holds(row + 1) && holds(row + 2) && holds(row + 3);
  };
  const auto sees = [&tile](int64_t row) { return tile.begin[row] < tile.end[row]; };
  const auto sees_all = [&tile](int64_t row) {
    return tile.begin[row] == 0 && tile.end[row] == tile.width;
  };
  for (int64_t row = 0; row < tile.rows;) {
    const size_t at = static_cast<size_t>(first_row + row);
    float max[4];
    if (four(row, sees_all)) {
      MaxOfFour<true>(tile, row, max);
      FinishRows<kBf16, true>(tile, row, 4, max, at, state);
      row += 4;
    } else if (four(row, sees)) {
      MaxOfFour<false>(tile, row, max);
      FinishRows<kBf16, false>(tile, row, 4, max, at, state);
      row += 4;
    } else if (sees(row)) {
      max[0] = MaxOfOne(tile, row);
      FinishRows<kBf16, false>(tile, row, 1, max, at, state);
      ++row;
    } else {
      SkipRow<kBf16>(tile, row, at, state);
      ++row;
    }
  }
}

}  // namespace

void SoftmaxStepImpl(const SoftmaxTile& tile, int64_t first_row, SoftmaxState* state) {
  for (int64_t row = 0; row < tile.rows && !tile.plain; ++row) {
    const int64_t begin = tile.begin[row];
    const int64_t count = tile.end[row] - begin;
    if (count <= 0) continue;
    float* t = tile.scores + row * tile.stride + begin;
    const float* bias = tile.bias == nullptr ? nullptr : tile.bias[row] + begin;
    TransformRow({tile.scale, bias, tile.softcap}, t, count, t);
    if (tile.masks != nullptr) ApplyMask(tile.masks[row], count, t);
  }
  if (tile.bf16 != nullptr) {
    StepRows<true>(tile, first_row, state);
  } else {
    StepRows<false>(tile, first_row, state);
  }
}

void TransformScoresImpl(const ScoreTransform& transform, const float* in, int64_t count,
                         float* out) {
  TransformRow(transform, in, count, out);
}

void FinishWeightsImpl(float unit, float max_then, float max_now, float sum, int64_t count,
                       float* p) {
  const float moved = max_then == max_now ? 1.0f : Exp2OfOne((max_then - max_now) * unit);
  const float factor = sum == 0.0f ? 0.0f : moved / sum;
  for (int64_t j = 0; j < count; ++j) p[j] = p[j] == 0.0f ? 0.0f : p[j] * factor;
}

}  // namespace HWY_NAMESPACE
}  // namespace headwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise {

HWY_EXPORT(SoftmaxStepImpl);
HWY_EXPORT(TransformScoresImpl);
HWY_EXPORT(FinishWeightsImpl);

void SoftmaxStep(const SoftmaxTile& tile, int64_t first_row, SoftmaxState* state) {
  HWY_DYNAMIC_DISPATCH(SoftmaxStepImpl)(tile, first_row, state);
}

void TransformScores(const ScoreTransform& transform, const float* in, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(TransformScoresImpl)(transform, in, count, out);
}

void FinishWeights(float unit, float max_then, float max_now, float sum, int64_t count, float* p) {
  HWY_DYNAMIC_DISPATCH(FinishWeightsImpl)(unit, max_then, max_now, sum, count, p);
}

SoftmaxState SoftmaxState::Start(const float* sink) {
  SoftmaxState state;
  state.max.fill(sink == nullptr ? -std::numeric_limits<float>::infinity() : *sink);
  state.sum.fill(sink == nullptr ? 0.0f : 1.0f);
  state.factor.fill(1.0f);
  return state;
}

}  // namespace headwise
#endif  // HWY_ONCE
