// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/quantise.h"

#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernel/quantise.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headwise {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

// round(x / scale) of a vector, ties to even, as s32 in [-127, 127].
// Divided, not multiplied by 1 / scale: that rounds twice, and overflows for tiny scales.
HWY_INLINE hn::Vec<hn::RebindToSigned<FloatTag>> Steps(FloatTag d, FloatVec x, FloatVec scale) {
  const FloatVec limit = hn::Set(d, 127.0f);
  return hn::NearestInt(hn::Clamp(hn::Div(x, scale), hn::Neg(limit), limit));
}

}  // namespace

void ToBf16Impl(const float* in, int64_t count, uint16_t* out) {
  const FloatTag d;
  const hn::Repartition<hwy::bfloat16_t, FloatTag> db;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto* place = reinterpret_cast<hwy::bfloat16_t*>(out);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    hn::StoreU(hn::OrderedDemote2To(db, hn::LoadU(d, in + i), hn::LoadU(d, in + i + lanes)), db,
               place + i);
  }
  if (i == count) return;
  const size_t rest = static_cast<size_t>(count - i);
  const size_t first = rest < hn::Lanes(d) ? rest : hn::Lanes(d);
  hn::StoreN(hn::OrderedDemote2To(db, hn::LoadN(d, in + i, first),
                                  hn::LoadN(d, in + i + lanes, rest - first)),
             db, place + i, rest);
}

float LargestMagnitudeImpl(const float* in, int64_t count) {
  // The bits of a magnitude grow with it, and those of a NaN are above all numbers.
  const hn::CappedTag<int32_t, 16> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(di));
  const auto sign_off = hn::Set(di, 0x7FFFFFFF);
  const auto* bits = reinterpret_cast<const int32_t*>(in);
  auto most0 = hn::Zero(di), most1 = hn::Zero(di);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    most0 = hn::Max(most0, hn::And(hn::LoadU(di, bits + i), sign_off));
    most1 = hn::Max(most1, hn::And(hn::LoadU(di, bits + i + lanes), sign_off));
  }
  for (; i < count; i += lanes) {
    const size_t rest = static_cast<size_t>(count - i);
    most0 = hn::Max(most0, hn::And(hn::LoadN(di, bits + i, rest), sign_off));
  }
  return std::bit_cast<float>(hn::ReduceMax(di, hn::Max(most0, most1)));
}

void QuantiseRowImpl(const float* in, float scale, int64_t count, uint8_t* out) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint8_t, FloatTag> du8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec scale_v = hn::Set(d, scale);
  const auto offset = hn::Set(di, 128);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto q = hn::Add(Steps(d, hn::LoadU(d, in + i), scale_v), offset);
    hn::StoreU(hn::DemoteTo(du8, q), du8, out + i);
  }
  if (i == count) return;
  const size_t rest = static_cast<size_t>(count - i);
  const auto q = hn::Add(Steps(d, hn::LoadN(d, in + i, rest), scale_v), offset);
  hn::StoreN(hn::DemoteTo(du8, q), du8, out + i, rest);
}

void DequantiseRowImpl(float row_scale, const float* column_scales, const int32_t* column_sums,
                       int64_t count, float* sums) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec scale = hn::Set(d, row_scale);
  int64_t j = 0;
  const auto value = [&](auto sum, auto column, auto column_scale) HWY_ATTR {
    const FloatVec exact = hn::ConvertTo(d, hn::Sub(sum, hn::ShiftLeft<7>(column)));
    return hn::Mul(exact, hn::Mul(scale, column_scale));
  };
  for (; j + lanes <= count; j += lanes) {
    const auto sum = hn::LoadU(di, reinterpret_cast<const int32_t*>(sums) + j);
    hn::StoreU(value(sum, hn::LoadU(di, column_sums + j), hn::LoadU(d, column_scales + j)), d,
               sums + j);
  }
  if (j == count) return;
  const size_t rest = static_cast<size_t>(count - j);
  const auto sum = hn::LoadN(di, reinterpret_cast<const int32_t*>(sums) + j, rest);
  hn::StoreN(
      value(sum, hn::LoadN(di, column_sums + j, rest), hn::LoadN(d, column_scales + j, rest)), d,
      sums + j, rest);
}

}  // namespace HWY_NAMESPACE
}  // namespace headwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise {

HWY_EXPORT(ToBf16Impl);
HWY_EXPORT(LargestMagnitudeImpl);
HWY_EXPORT(QuantiseRowImpl);
HWY_EXPORT(DequantiseRowImpl);

void ToBf16(const float* in, int64_t count, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(ToBf16Impl)(in, count, out);
}

float QuantiseScale(float largest) {
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  return largest / 127.0f;
}

float LargestMagnitude(const float* in, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LargestMagnitudeImpl)(in, count);
}

void QuantiseRow(const float* in, float scale, int64_t count, uint8_t* out) {
  if (!(scale > 0.0f)) {
    for (int64_t i = 0; i < count; ++i) out[i] = 128;
    return;
  }
  HWY_DYNAMIC_DISPATCH(QuantiseRowImpl)(in, scale, count, out);
}

void DequantiseRow(float row_scale, const float* column_scales, const int32_t* column_sums,
                   int64_t count, float* sums) {
  HWY_DYNAMIC_DISPATCH(DequantiseRowImpl)(row_scale, column_scales, column_sums, count, sums);
}

}  // namespace headwise
#endif  // HWY_ONCE
