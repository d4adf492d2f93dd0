// SPDX-License-Identifier: Apache-2.0
// The same numbers in every form that a request may carry them in, and what hidden tokens hold.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

constexpr int64_t kWidth = 24;

class Inputs : public ::testing::Test {
 protected:
  void SetUp() override { Load(engine_.get(), "layer", RandomLayer(BasicSpec(kWidth, 3), 70)); }

  std::vector<float> Y(const AttentionInput& input) {
    ForwardRequest request;
    request.layer = "layer";
    request.input = input;
    const absl::StatusOr<ForwardResult> result = ForwardNow(engine_.get(), std::move(request));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? ByName(result->outputs)["y"] : std::vector<float>{};
  }

  absl::Status Refusal(const AttentionInput& input) {
    ForwardRequest request;
    request.layer = "layer";
    request.input = input;
    return ForwardNow(engine_.get(), std::move(request)).status();
  }

  const std::unique_ptr<Engine> engine_ = MakeEngine();
};

std::vector<uint16_t> Bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(FloatToBf16(value));
  return bits;
}

// A view of `values` at an odd address.
template <typename T>
TensorView Unaligned(DType dtype, Shape shape, const std::vector<T>& values,
                     std::vector<uint8_t>* bytes) {
  bytes->resize(values.size() * sizeof(T) + 1);
  std::memcpy(bytes->data() + 1, values.data(), values.size() * sizeof(T));
  return {dtype, std::move(shape), bytes->data() + 1};
}

TEST_F(Inputs, HalfWidthTokensAreWidenedExactly) {
  const std::vector<uint16_t> bits = Bf16(RandomFloats(9 * kWidth, 71));
  std::vector<float> widened;
  for (const uint16_t b : bits) widened.push_back(Bf16ToFloat(b));
  AttentionInput input;
  input.x = {DType::kBF16, {9, kWidth}, bits.data()};
  EXPECT_TRUE(SameBits(Y(input), Y(TestInput(kWidth, widened).get())));

  std::vector<uint16_t> halves;
  std::vector<float> from_halves;
  for (uint16_t i = 0; i < 9 * kWidth; ++i) {
    halves.push_back(static_cast<uint16_t>(0x2c00 + 37 * i % 0x1400));
    from_halves.push_back(F16ToFloat(halves.back()));
  }
  input.x = {DType::kF16, {9, kWidth}, halves.data()};
  EXPECT_TRUE(SameBits(Y(input), Y(TestInput(kWidth, from_halves).get())));
}

TEST_F(Inputs, BytesNeedNoAlignment) {
  const std::vector<float> x = RandomFloats(9 * kWidth, 72), mask = RandomFloats(81, 73);
  const TestInput aligned = TestInput(kWidth, x).Additive(MaskForm::kPair, mask);
  std::vector<uint8_t> x_bytes, mask_bytes;
  AttentionInput input;
  input.x = Unaligned(DType::kF32, {9, kWidth}, x, &x_bytes);
  input.mask = MaskInput{MaskKind::kAdditive, MaskForm::kPair,
                         Unaligned(DType::kF32, {9, 9}, mask, &mask_bytes)};
  EXPECT_TRUE(SameBits(Y(input), Y(aligned.get())));
}

TEST_F(Inputs, AdditiveMasksOfHalfWidth) {
  const std::vector<float> x = RandomFloats(5 * kWidth, 74);
  std::vector<float> mask = {0, -1.5f, 0.25f, -std::numeric_limits<float>::infinity(), 3};
  const std::vector<uint16_t> bits = Bf16(mask);
  TestInput wide(kWidth, x);
  wide.Additive(MaskForm::kKey, mask);
  AttentionInput narrow = wide.get();
  narrow.mask->tensor = {DType::kBF16, {5}, bits.data()};
  EXPECT_TRUE(SameBits(Y(narrow), Y(wide.get())));
}

TEST_F(Inputs, DenseIsTheCaseOfEqualLengths) {
  const TestInput packed(kWidth, RandomFloats(12 * kWidth, 75), {4, 4, 4});
  AttentionInput dense = packed.get();
  dense.lengths.clear();
  dense.x.shape = {3, 4, kWidth};
  EXPECT_TRUE(SameBits(Y(dense), Y(packed.get())));
}

TEST_F(Inputs, MaskFormIsFoundByCount) {
  const std::vector<float> x = RandomFloats(5 * kWidth, 76);
  for (const auto& [form, count] : std::vector<std::pair<MaskForm, size_t>>{
           {MaskForm::kKey, 5}, {MaskForm::kPair, 25}, {MaskForm::kHead, 75}}) {
    std::vector<uint8_t> mask(count, 1);
    for (size_t i = 0; i < count; i += 4) mask[i] = 0;
    const TestInput named = TestInput(kWidth, x).Keep(form, mask);
    const TestInput counted = TestInput(kWidth, x).Keep(MaskForm::kByCount, mask);
    EXPECT_TRUE(SameBits(Y(counted.get()), Y(named.get())));
  }
}

TEST_F(Inputs, AMaskThatFitsTwoFormsMustNameItsOwn) {
  // With one query a sequence, a key mask and a pair mask are the same thing.
  const std::vector<float> x = RandomFloats(4 * kWidth, 77);
  TestInput same(kWidth, x, {1, 1, 1, 1});
  EXPECT_TRUE(Refusal(same.Keep(MaskForm::kByCount, {1, 1, 0, 1}).get()).ok());
  // T 2 and 0 with S 2 and 2: four elements of either form, which mean different things.
  TestInput differ(kWidth, RandomFloats(2 * kWidth, 78), {2, 0});
  differ.Memory(kWidth, RandomFloats(4 * kWidth, 79), {2, 2});
  const absl::Status refused = Refusal(differ.Keep(MaskForm::kByCount, {1, 1, 0, 1}).get());
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Inputs, WrongSizesAreRefused) {
  const std::vector<float> x = RandomFloats(4 * kWidth, 80);
  const auto code = [this](const TestInput& input) { return Refusal(input.get()).code(); };
  EXPECT_EQ(code(TestInput(kWidth, x, {3})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TestInput(kWidth, x, {5, -1})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TestInput(kWidth - 1, x)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TestInput(kWidth, x).Positions({0, 1, 2})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TestInput(kWidth, x).Keep(MaskForm::kPair, {1, 1, 1, 1})),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TestInput(kWidth, x).Window(-1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TestInput(kWidth, x, {2, 2}).Memory(kWidth, x, {4})),
            absl::StatusCode::kInvalidArgument);
  AttentionInput integers = TestInput(kWidth, x).get();
  integers.x.dtype = DType::kI32;
  EXPECT_EQ(Refusal(integers).code(), absl::StatusCode::kInvalidArgument);
}

// Keys of a memory that a row may not see change none of its bits, whatever they hold; a NaN that
// it may see reaches it.
TEST_F(Inputs, PoisonReachesExactlyTheRowsThatSeeIt) {
  constexpr int64_t kQueries = 70, kKeys = 290;
  const std::vector<float> x = RandomFloats(kQueries * kWidth, 81);
  const std::vector<float> memory = RandomFloats(kKeys * kWidth, 82);
  std::vector<uint8_t> keep(kQueries * kKeys);
  for (size_t i = 0; i < keep.size(); ++i) keep[i] = i * 2654435761u >> 13 & 1;
  TestInput healthy(kWidth, x);
  healthy.Memory(kWidth, memory).Keep(MaskForm::kPair, keep);
  const std::vector<float> expected = Y(healthy.get());
  for (const int64_t key : {0, 1, 63, 64, 150, 255, 256, 289}) {
    for (const float poison :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
      std::vector<float> poisoned = memory;
      poisoned[static_cast<size_t>(key * kWidth + 5)] = poison;
      TestInput input(kWidth, x);
      input.Memory(kWidth, poisoned).Keep(MaskForm::kPair, keep);
      const std::vector<float> y = Y(input.get());
      for (int64_t row = 0; row < kQueries; ++row) {
        const auto begin = static_cast<size_t>(row * kWidth);
        if (keep[static_cast<size_t>(row * kKeys + key)] == 0) {
          ASSERT_TRUE(SameBits(absl::MakeConstSpan(y).subspan(begin, kWidth),
                               absl::MakeConstSpan(expected).subspan(begin, kWidth)))
              << "key " << key << ", row " << row << ", " << poison;
        } else if (std::isnan(poison)) {
          ASSERT_TRUE(std::isnan(y[begin])) << "key " << key << ", row " << row;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headwise
