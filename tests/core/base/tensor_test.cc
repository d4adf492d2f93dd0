// SPDX-License-Identifier: Apache-2.0
#include "core/base/tensor.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Tensor, NumElements) {
  const auto count = [](Shape shape) { return NumElements(shape); };
  EXPECT_EQ(count({}), 1);
  EXPECT_EQ(count({3, 4}), 12);
  EXPECT_EQ(count({3, 0}), 0);
  EXPECT_EQ(count({int64_t{1} << 62}), int64_t{1} << 62);
  EXPECT_EQ(count({int64_t{1} << 31, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(count({int64_t{1} << 40, int64_t{1} << 40, 0}), 0);
  EXPECT_EQ(count({-1}), std::nullopt);
  EXPECT_EQ(count({0, -1}), std::nullopt);
}

TEST(Tensor, ShapeToString) {
  EXPECT_EQ(ShapeToString(Shape{3, 4}), "[3, 4]");
  EXPECT_EQ(ShapeToString(Shape{}), "[]");
}

// Case N17 (a): a 32-bit product would be negative.
TEST(Cases, N17_RowOffsetsAre64Bit) {
  EXPECT_EQ(RowOffset(4096 * int64_t{4097}, 128), 2148007936);
  EXPECT_EQ(RowOffset(65536, 65536, 5), 4294967301);
}

TEST(Tensor, FloatsFromUnalignedBytesOfEachKind) {
  const std::string bf16 = "x" + Raw<uint16_t>({0x3f80, 0xc000});
  EXPECT_THAT(*ToFloats({DType::kBF16, {2}, bf16.data() + 1}, "w"), ElementsAre(1.0f, -2.0f));
  const std::string f16 = "x" + Raw<uint16_t>({0x3c00, 0xc000});
  EXPECT_THAT(*ToFloats({DType::kF16, {2}, f16.data() + 1}, "w"), ElementsAre(1.0f, -2.0f));
  const std::string f32 = "x" + Raw<float>({1.5f, -2.5f});
  EXPECT_THAT(*ToFloats({DType::kF32, {2}, f32.data() + 1}, "w"), ElementsAre(1.5f, -2.5f));
  EXPECT_THAT(*ToDoubles({DType::kF32, {2}, f32.data() + 1}, "w"), ElementsAre(1.5, -2.5));
  const std::string f64 = "x" + Raw<double>({0.1, 1e300});
  EXPECT_THAT(*ToFloats({DType::kF64, {2}, f64.data() + 1}, "w"),
              ElementsAre(0.1f, std::numeric_limits<float>::infinity()));
  EXPECT_THAT(*ToDoubles({DType::kF64, {2}, f64.data() + 1}, "w"), ElementsAre(0.1, 1e300));
}

TEST(Tensor, IntegersOfEachKind) {
  const std::string i32 = "x" + Raw<int32_t>({7, -3});
  EXPECT_THAT(*ToIntegers({DType::kI32, {2}, i32.data() + 1}, "lengths"), ElementsAre(7, -3));
  const std::string i64 = "x" + Raw<int64_t>({int64_t{1} << 40, -3});
  EXPECT_THAT(*ToIntegers({DType::kI64, {2}, i64.data() + 1}, "lengths"),
              ElementsAre(int64_t{1} << 40, -3));
}

TEST(Tensor, WrongKindNamesTheField) {
  const float value = 1.0f;
  const absl::Status integers = ToIntegers({DType::kF32, {1}, &value}, "lengths").status();
  EXPECT_EQ(integers.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(integers.message(), "lengths: dtype must be I32 or I64; was F32");
  const absl::Status floats = ToFloats({DType::kI32, {1}, &value}, "x").status();
  EXPECT_EQ(floats.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(floats.message(), HasSubstr("x: dtype must be F32, BF16, F16 or F64; was I32"));
}

TEST(Tensor, EmptyTensorsNeedNoBytes) {
  EXPECT_TRUE(ToFloats({DType::kF32, {0, 4}, nullptr}, "x")->empty());
  EXPECT_TRUE(ToIntegers({DType::kI32, {0}, nullptr}, "x")->empty());
  EXPECT_TRUE(FloatTensor({0}, {}).data.empty());
}

TEST(Tensor, FloatTensorHoldsItsValues) {
  const OwnedTensor tensor = FloatTensor({2, 1}, {1.0f, 2.0f});
  EXPECT_EQ(tensor.view().bytes(), 8u);
  EXPECT_THAT(Elements<float>(tensor), ElementsAre(1.0f, 2.0f));
}

}  // namespace
}  // namespace headwise
