// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/single_row.h"

#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernel/single_row.cc"
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
  static HWY_INLINE FloatVec MulAdd(FloatVec a, FloatVec b, FloatVec sum) {
    return hn::MulAdd(a, b, sum);
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
  static HWY_INLINE FloatVec MulAdd(Pairs a, Pairs b, FloatVec sum) {
    return hn::Add(sum, hn::WidenMulPairwiseAdd(FloatTag(), a, b));
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

}  // namespace HWY_NAMESPACE
}  // namespace headwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise {

HWY_EXPORT(ScoreRowImpl);
HWY_EXPORT(AddWeightedRowsImpl);

void ScoreRow(TileType type, const void* q, const void* kt, int64_t dk, int64_t panel,
              int64_t columns, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreRowImpl)(type, q, kt, dk, panel, columns, scores);
}

void AddWeightedRows(TileType type, const void* weights, const void* v, int64_t keys,
                     int64_t features, float* output) {
  HWY_DYNAMIC_DISPATCH(AddWeightedRowsImpl)(type, weights, v, keys, features, output);
}

}  // namespace headwise
#endif  // HWY_ONCE
