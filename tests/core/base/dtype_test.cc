// SPDX-License-Identifier: Apache-2.0
#include "core/base/dtype.h"

#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace headwise {
namespace {

constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32,
                          DType::kI64, DType::kBool, DType::kU8,  DType::kI8};

TEST(DType, NamesAndBack) {
  for (const DType dtype : kAll) EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
  EXPECT_EQ(DTypeFromName("f32"), std::nullopt);
  EXPECT_EQ(DTypeFromName("F8_E4M3"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
}

TEST(DType, EveryTypeIsFloatIntegerOrBool) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(IsFloat(dtype) + IsInteger(dtype), dtype == DType::kBool ? 0 : 1) << DTypeName(dtype);
  }
}

// value of a half, by its definition.
double HalfByDefinition(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 0x3ff;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(DType, EveryHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = HalfByDefinition(static_cast<uint16_t>(bits));
    const float actual = F16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(actual), expected) << bits;
      ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << bits;
    }
  }
}

TEST(DType, EveryBf16GoesThereAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value)))) << bits;
    } else {
      ASSERT_EQ(FloatToBf16(value), bits);
    }
  }
}

TEST(DType, FloatToBf16RoundsTiesToEven) {
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, down to even
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, up to even
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f807fffu)), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);  // becomes infinity
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7fffffffu)))));
}

}  // namespace
}  // namespace headwise
