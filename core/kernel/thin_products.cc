// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/thin_products.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/kernel/tile_sizes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernel/thin_products.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headwise {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 16 lanes at most: columns of a panel are multiples of 16.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

// A lane is one f32 of a row or the two bf16 of a pair of rows.
struct F32 {
  using Number = float;                   // of the left side
  using Lane = float;                     // of the right one
  static constexpr int64_t kNumbers = 1;  // in a lane
  static HWY_INLINE FloatVec Broadcast(const float* at) { return hn::Set(FloatTag(), *at); }
  static HWY_INLINE FloatVec Load(const float* at) { return hn::LoadU(FloatTag(), at); }
  static HWY_INLINE FloatVec LoadSome(const float* at, size_t count) {
    return hn::LoadN(FloatTag(), at, count);
  }
  // A whole vector, zeros for its first `skip` lanes.
  static HWY_INLINE FloatVec LoadAfter(const float* at, size_t skip) {
    return hn::IfThenZeroElse(hn::FirstN(FloatTag(), skip), Load(at));
  }
  static HWY_INLINE FloatVec MulAdd(FloatVec a, FloatVec b, FloatVec sum) {
    return hn::MulAdd(a, b, sum);
  }
  // To one of two sums that are added up in the end, whichever is quicker.
  static HWY_INLINE void Accumulate(FloatVec a, FloatVec b, FloatVec* sum, FloatVec* /*other*/) {
    *sum = hn::MulAdd(a, b, *sum);
  }
};

struct Bf16 {
  using Number = uint16_t;
  using Lane = uint32_t;
  static constexpr int64_t kNumbers = 2;
  using UnsignedTag = hn::RebindToUnsigned<FloatTag>;
  using PairTag = hn::Repartition<hwy::bfloat16_t, FloatTag>;
  using Pairs = hn::Vec<PairTag>;
  // A row of q may begin in the middle of a word.
  static HWY_INLINE Pairs Broadcast(const uint16_t* at) {
    uint32_t pair;
    std::memcpy(&pair, at, sizeof(pair));
    return hn::BitCast(PairTag(), hn::Set(UnsignedTag(), pair));
  }
  static HWY_INLINE Pairs Load(const uint32_t* at) {
    return hn::BitCast(PairTag(), hn::LoadU(UnsignedTag(), at));
  }
  static HWY_INLINE Pairs LoadSome(const uint32_t* at, size_t count) {
    return hn::BitCast(PairTag(), hn::LoadN(UnsignedTag(), at, count));
  }
  static HWY_INLINE Pairs LoadAfter(const uint32_t* at, size_t skip) {
    const UnsignedTag d;
    return hn::BitCast(PairTag(), hn::IfThenZeroElse(hn::FirstN(d, skip), hn::LoadU(d, at)));
  }
  static HWY_INLINE FloatVec MulAdd(Pairs a, Pairs b, FloatVec sum) {
    return hn::Add(sum, hn::WidenMulPairwiseAdd(FloatTag(), a, b));
  }
  static HWY_INLINE void Accumulate(Pairs a, Pairs b, FloatVec* sum, FloatVec* other) {
    *sum = hn::ReorderWidenMulAccumulate(FloatTag(), a, b, *sum, *other);
  }
};

// sums += a [depth] times `kVectors` vectors of columns of b [depth, stride].
template <typename Type, size_t kVectors>
HWY_INLINE void MultiplyColumns(const typename Type::Number* a, const typename Type::Lane* b,
                                int64_t depth, int64_t stride,
                                std::array<FloatVec, kVectors>* sums) {
  const size_t lanes = hn::Lanes(FloatTag());
  for (int64_t k = 0; k < depth; ++k, b += stride) {
    const auto left = Type::Broadcast(a + k * Type::kNumbers);
    for (size_t i = 0; i < kVectors; ++i) {
      (*sums)[i] = Type::MulAdd(left, Type::Load(b + i * lanes), (*sums)[i]);
    }
  }
}

// c [columns] (+)= a [depth lanes] times b [depth, stride]; kAccumulate: c is read first.
template <typename Type, bool kAccumulate>
void MultiplyRow(const void* a, const void* b, int64_t depth, int64_t stride, int64_t columns,
                 float* c) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* left = static_cast<const typename Type::Number*>(a);
  const auto* right = static_cast<const typename Type::Lane*>(b);
  int64_t column = 0;
  const auto run = [&]<size_t kVectors>(std::array<FloatVec, kVectors> sums) HWY_ATTR {
    for (size_t i = 0; i < kVectors; ++i) {
      float* const place = c + column + static_cast<int64_t>(i) * lanes;
      sums[i] = kAccumulate ? hn::LoadU(d, place) : hn::Zero(d);
    }
    MultiplyColumns<Type, kVectors>(left, right + column, depth, stride, &sums);
    for (size_t i = 0; i < kVectors; ++i) {
      hn::StoreU(sums[i], d, c + column + static_cast<int64_t>(i) * lanes);
    }
    column += static_cast<int64_t>(kVectors) * lanes;
  };
  while (column + 8 * lanes <= columns) run(std::array<FloatVec, 8>());
  while (column + 4 * lanes <= columns) run(std::array<FloatVec, 4>());
  while (column + lanes <= columns) run(std::array<FloatVec, 1>());
  if (column == columns) return;
  const size_t rest = static_cast<size_t>(columns - column);
  FloatVec sum = kAccumulate ? hn::LoadN(d, c + column, rest) : hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    sum = Type::MulAdd(Type::Broadcast(left + k * Type::kNumbers),
                       Type::LoadSome(right + k * stride + column, rest), sum);
  }
  hn::StoreN(sum, d, c + column, rest);
}

// Lanes [first, last) of rows of weights, kScoreStride numbers apart, and of features.
template <typename Type>
struct Dots {
  using Lane = typename Type::Lane;
  const Lane* weights;
  const Lane* features;
  int64_t feature_stride;
  int64_t first, last;
  float* output;
  int64_t output_stride;
};

// The sum of each vector's lanes, in an order that is the same for all.
HWY_INLINE std::array<float, 4> SumsOf(const std::array<FloatVec, 4>& v) {
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> wide;
  // Of every four lanes a vector's sum ends in the vector's own: halves of them, then pairs.
  const FloatVec low =
      hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const FloatVec high =
      hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto low2 = hn::BitCast(wide, low), high2 = hn::BitCast(wide, high);
  const FloatVec fours = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, low2, high2)),
                                 hn::BitCast(d, hn::InterleaveUpper(wide, low2, high2)));
  alignas(64) float lanes[16];
  hn::Store(fours, d, lanes);
  std::array<float, 4> sums = {};
  for (size_t at = 0; at < hn::Lanes(d); at += 4) {
    for (size_t i = 0; i < 4; ++i) sums[i] += lanes[at + i];
  }
  return sums;
}

// output [rows, kFeatures] += what up to four rows and the features from `feature` on multiply to.
template <typename Type, size_t kFeatures>
void AddDots(const Dots<Type>& dots, int64_t row, int64_t rows, int64_t feature) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto* features = dots.features + feature * dots.feature_stride;
  std::array<const typename Type::Lane*, 4> weights;
  for (int64_t i = 0; i < 4; ++i) {
    // Where there are fewer the last one is computed again.
    weights[static_cast<size_t>(i)] =
        dots.weights + (row + std::min(i, rows - 1)) * (kScoreStride / Type::kNumbers);
  }
  std::array<std::array<FloatVec, 4>, kFeatures> sums, others;
  for (auto& of_feature : sums) of_feature.fill(hn::Zero(d));
  others = sums;
  const auto add = [&](int64_t at, auto load) HWY_ATTR {
    for (size_t i = 0; i < 4; ++i) {
      const auto weight = load(weights[i] + at);
      for (size_t f = 0; f < kFeatures; ++f) {
        const auto value = load(features + static_cast<int64_t>(f) * dots.feature_stride + at);
        Type::Accumulate(weight, value, &sums[f][i], &others[f][i]);
      }
    }
  };
  int64_t at = RoundDown(dots.first, lanes);
  if (at < dots.first) {
    const size_t skip = static_cast<size_t>(dots.first - at);
    add(at, [skip](const auto* from) HWY_ATTR { return Type::LoadAfter(from, skip); });
    at += lanes;
  }
  for (; at + lanes <= dots.last; at += lanes) {
    add(at, [](const auto* from) HWY_ATTR { return Type::Load(from); });
  }
  if (at < dots.last) {
    const size_t rest = static_cast<size_t>(dots.last - at);
    add(at, [rest](const auto* from) HWY_ATTR { return Type::LoadSome(from, rest); });
  }
  float* output = dots.output + row * dots.output_stride + feature;
  for (size_t f = 0; f < kFeatures; ++f) {
    for (size_t i = 0; i < 4; ++i) sums[f][i] = hn::Add(sums[f][i], others[f][i]);
    const std::array<float, 4> of_rows = SumsOf(sums[f]);
    for (int64_t i = 0; i < rows; ++i) {
      output[i * dots.output_stride + static_cast<int64_t>(f)] += of_rows[static_cast<size_t>(i)];
    }
  }
}

template <typename Type, size_t kFeatures>
void AddDotsOfRows(const Dots<Type>& dots, int64_t rows, int64_t feature) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) AddDots<Type, kFeatures>(dots, row, 4, feature);
  if (row < rows) AddDots<Type, kFeatures>(dots, row, rows - row, feature);
}

template <typename Type>
void AddDotsOfAll(const void* weights, int64_t rows, const FeatureRows& v, int64_t first,
                  int64_t last, float* output, int64_t stride) {
  const Dots<Type> dots{.weights = static_cast<const typename Type::Lane*>(weights),
                        .features = static_cast<const typename Type::Lane*>(v.data),
                        .feature_stride = v.stride / Type::kNumbers,
                        .first = first / Type::kNumbers,
                        .last = last / Type::kNumbers,
                        .output = output,
                        .output_stride = stride};
  int64_t feature = 0;
  for (; feature + 2 <= v.features; feature += 2) AddDotsOfRows<Type, 2>(dots, rows, feature);
  if (feature < v.features) AddDotsOfRows<Type, 1>(dots, rows, feature);
}

}  // namespace

void ScoreRowImpl(TileType type, const void* q, const void* kt, int64_t dk, int64_t panel,
                  int64_t columns, float* scores) {
  if (type == TileType::kF32) {
    return MultiplyRow<F32, false>(q, kt, dk, panel, columns, scores);
  }
  MultiplyRow<Bf16, false>(q, kt, dk / 2, panel, columns, scores);
  if (dk % 2 == 0) return;
  // The last pair of rows is filled up with zeros; what follows q is anything.
  const uint16_t last[2] = {static_cast<const uint16_t*>(q)[dk - 1], 0};
  MultiplyRow<Bf16, true>(last, static_cast<const uint32_t*>(kt) + dk / 2 * panel, 1, panel,
                          columns, scores);
}

void AddWeightedRowsImpl(TileType type, const void* weights, const void* v, int64_t keys,
                         int64_t features, float* output) {
  if (type == TileType::kBf16) {
    MultiplyRow<Bf16, true>(weights, v, keys / 2, features, features, output);
  } else {
    MultiplyRow<F32, true>(weights, v, keys, features, features, output);
  }
}

void AddFeaturesApartImpl(TileType type, const void* weights, int64_t rows, const FeatureRows& v,
                          int64_t first, int64_t last, float* output, int64_t stride) {
  if (type == TileType::kBf16) {
    AddDotsOfAll<Bf16>(weights, rows, v, first, last, output, stride);
  } else {
    AddDotsOfAll<F32>(weights, rows, v, first, last, output, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise {

HWY_EXPORT(ScoreRowImpl);
HWY_EXPORT(AddWeightedRowsImpl);
HWY_EXPORT(AddFeaturesApartImpl);

void ScoreRow(TileType type, const void* q, const void* kt, int64_t dk, int64_t panel,
              int64_t columns, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreRowImpl)(type, q, kt, dk, panel, columns, scores);
}

void AddWeightedRows(TileType type, const void* weights, const void* v, int64_t keys,
                     int64_t features, float* output) {
  HWY_DYNAMIC_DISPATCH(AddWeightedRowsImpl)(type, weights, v, keys, features, output);
}

void AddFeaturesApart(TileType type, const void* weights, int64_t rows, const FeatureRows& v,
                      int64_t first, int64_t last, float* output, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(AddFeaturesApartImpl)(type, weights, rows, v, first, last, output, stride);
}

}  // namespace headwise
#endif  // HWY_ONCE
