// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/vector_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/base/dtype.h"
#include "core/kernel/stack_ops.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

RowsView View(std::vector<float>* values, int64_t rows, int64_t width, int64_t stride) {
  return {values->data(), rows, width, stride};
}

TEST(VectorOps, GramOfSmallIntegersIsExact) {
  for (const int64_t count : {1, 2, 4, 5, 9, 13}) {
    constexpr int64_t kTokens = 3, kWidth = 32, kStride = 40;
    const int64_t matrix = kTokens * kStride;
    std::vector<float> m;
    for (int64_t i = 0; i < count * matrix; ++i) m.push_back(static_cast<float>(i % 7 - 3));
    std::vector<double> gram(static_cast<size_t>(count * count), 1.0);
    AddGram({m.data(), count, kTokens, kWidth, matrix, kStride}, gram.data());
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t s = r; s < count; ++s) {
        double expected = 1.0;
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t c = 0; c < kWidth; ++c) {
            const auto at = [&](int64_t head) {
              return static_cast<double>(m[static_cast<size_t>(head * matrix + t * kStride + c)]);
            };
            expected += at(r) * at(s);
          }
        }
        EXPECT_EQ(gram[static_cast<size_t>(r * count + s)], expected) << r << "," << s;
      }
    }
  }
}

TEST(VectorOps, SquareRowsLeavesRowsAlone) {
  for (const int64_t width : {1, 7, 16, 37, 64}) {
    std::vector<float> values;
    for (int64_t i = 0; i < 3 * 66; ++i) values.push_back(static_cast<float>(i % 9 - 4));
    const std::vector<float> before = values;
    std::vector<float> squares(3 * 5, kNaN);
    SquareRows(View(&values, 3, width, 66), 5, squares.data());
    EXPECT_EQ(values, before);
    for (size_t row = 0; row < 3; ++row) {
      float expected = 0.0f;
      for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
        expected += values[row * 66 + i] * values[row * 66 + i];
      }
      EXPECT_EQ(squares[row * 5], expected) << width;
      EXPECT_TRUE(std::isnan(squares[row * 5 + 1]));
    }
  }
}

TEST(VectorOps, SumMatricesAddsInOrder) {
  const std::vector<float> m = RandomFloats(3 * 2 * 20, 4), bias = RandomFloats(19, 5);
  std::vector<float> out(2 * 20, kNaN);
  SumMatrices({m.data(), 3, 2, 19, 40, 20}, bias.data(), out.data());
  for (size_t t = 0; t < 2; ++t) {
    for (size_t c = 0; c < 19; ++c) {
      const size_t at = t * 20 + c;
      EXPECT_EQ(out[at], bias[c] + m[at] + m[40 + at] + m[80 + at]);
    }
    EXPECT_TRUE(std::isnan(out[t * 20 + 19])) << "beyond the width";
  }
}

TEST(VectorOps, TransposeCopiesEveryElement) {
  for (const int64_t rows : {1, 3, 4, 15, 16, 17, 64}) {
    for (const int64_t columns : {1, 5, 20, 64}) {
      const std::vector<float> in = RandomFloats(rows * (columns + 2), 1);
      std::vector<float> out(static_cast<size_t>(columns * (rows + 3)), kNaN);
      Transpose32(in.data(), columns + 2, rows, columns, out.data(), rows + 3);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          EXPECT_EQ(out[static_cast<size_t>(c * (rows + 3) + r)],
                    in[static_cast<size_t>(r * (columns + 2) + c)]);
        }
        EXPECT_TRUE(std::isnan(out[static_cast<size_t>(rows)])) << "beyond the rows";
      }
    }
  }
}

TEST(VectorOps, FlagsFindEachKindOfBadNumber) {
  for (const float bad : {kNaN, kInf, -kInf, 2.5f}) {
    for (size_t at = 0; at < 37; ++at) {
      std::vector<float> values(2 * 40, 2.0f);
      uint8_t flags[2] = {7, 7};
      values[40 + at] = bad;
      values[37] = kNaN;  // between the rows
      FlagRows(2.0f, View(&values, 2, 37, 40), flags);
      EXPECT_EQ(flags[0], 0);
      EXPECT_EQ(flags[1], 1) << at;
    }
  }
}

TEST(VectorOps, Bf16RowsRoundAsTheScalarDoes) {
  std::vector<float> values = RandomFloats(2 * 70, 8, 1e3f);
  values[3] = kNaN;
  values[4] = kInf;
  values[5] = 3.3961e38f;   // rounds to infinity
  values[6] = 1.00390625f;  // halfway: to even
  for (const size_t width : {1, 16, 31, 32, 58, 67}) {
    for (const size_t room : {0, 1, 6, 40}) {
      const size_t stride = width + room;
      const int64_t columns = static_cast<int64_t>(stride);
      const RowsView rows = View(&values, 2, static_cast<int64_t>(width), 70);
      std::vector<uint16_t> out(2 * stride + 1, 9);
      StoreRowsAsBf16(rows, columns, out.data());
      std::vector<uint16_t> pairs(2 * stride + 1, 9);
      InterleaveAsBf16(rows.row(0), rows.row(1), rows.width, columns, pairs.data());
      for (size_t i = 0; i < stride; ++i) {
        for (const size_t row : {size_t{0}, size_t{1}}) {
          const uint16_t right = i < width ? FloatToBf16(values[row * 70 + i]) : uint16_t{0};
          EXPECT_EQ(out[row * stride + i], right) << i << " of " << width;
          EXPECT_EQ(pairs[2 * i + row], right) << i << " of " << width;
        }
      }
      EXPECT_EQ(out.back(), 9) << "beyond the rows";
      EXPECT_EQ(pairs.back(), 9) << "beyond the rows";
    }
  }
}

TEST(VectorOps, RowsAreStoredWithZerosBehindThem) {
  std::vector<float> values = RandomFloats(2 * 70, 8);
  for (const size_t width : {1, 16, 31, 32, 58, 67}) {
    for (const size_t room : {0, 1, 6, 40}) {
      const size_t stride = width + room;
      std::vector<float> out(2 * stride + 1, 9.0f);
      StoreRows(View(&values, 2, static_cast<int64_t>(width), 70), static_cast<int64_t>(stride),
                out.data());
      for (size_t i = 0; i < stride; ++i) {
        for (const size_t row : {size_t{0}, size_t{1}}) {
          EXPECT_EQ(out[row * stride + i], i < width ? values[row * 70 + i] : 0.0f) << i;
        }
      }
      EXPECT_EQ(out.back(), 9.0f) << "beyond the rows";
    }
  }
}

TEST(VectorOps, RowsAreScaledBiasedAndClamped) {
  std::vector<float> values = {1, 2, kNaN, 9, -5, 6, 7, 9};
  const std::vector<float> bias = {10, 20, 30};
  const RowsView m = View(&values, 2, 3, 4);
  AddBias(bias.data(), m);
  EXPECT_EQ(values[1], 22.0f);
  EXPECT_EQ(values[3], 9.0f) << "between the rows";
  ClampRows(20.0f, m);
  EXPECT_EQ(values[0], 11.0f);
  EXPECT_EQ(values[1], 20.0f);
  EXPECT_TRUE(std::isnan(values[2]));
  EXPECT_EQ(values[4], 5.0f);
  const float factors[2] = {1.0f, 0.5f};
  ScaleRows(factors, m);
  EXPECT_EQ(values[0], 11.0f);
  EXPECT_EQ(values[4], 2.5f);
  std::vector<float> out(8, 0.0f);
  ScaleRowsTo(factors, m, 3, out.data());
  EXPECT_EQ(out[3], 1.25f);
}

TEST(VectorOps, NormsAgreeWithDoubles) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kRmsPlusOne, NormKind::kLayerNorm}) {
    for (const int64_t width : {4, 16, 21, 64}) {
      const QkNormSpec norm{.kind = kind, .span = QkNormSpan::kHead, .epsilon = 1e-3};
      std::vector<float> values = RandomFloats(width, 2, 3.0f);
      const std::vector<float> raw = values, weights = RandomFloats(width, 3),
                               bias = RandomFloats(width, 4);
      NormRows(norm, weights.data(), bias.data(), View(&values, 1, width, width));
      double mean = 0.0, squares = 0.0;
      for (const float x : raw) mean += static_cast<double>(x) / static_cast<double>(width);
      if (kind != NormKind::kLayerNorm) mean = 0.0;
      for (const float x : raw) squares += std::pow(static_cast<double>(x) - mean, 2);
      const double spread = std::sqrt(squares / static_cast<double>(width) + 1e-3);
      for (size_t i = 0; i < raw.size(); ++i) {
        const double weight =
            static_cast<double>(weights[i]) + (kind == NormKind::kRmsPlusOne ? 1.0 : 0.0);
        const double expected =
            (static_cast<double>(raw[i]) - mean) / spread * weight + static_cast<double>(bias[i]);
        EXPECT_NEAR(static_cast<double>(values[i]), expected, 2e-6);
      }
    }
  }
}

TEST(VectorOps, RowsTurnInBothLayouts) {
  constexpr int64_t kDims = 22, kWidth = 25;
  for (const RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
    std::vector<float> values = RandomFloats(kWidth, 5);
    const std::vector<float> raw = values;
    std::vector<float> angles(2 * kDims);
    for (int64_t i = 0; i < kDims / 2; ++i) {
      const float c = std::cos(static_cast<float>(i)), s = std::sin(static_cast<float>(i));
      const size_t at = static_cast<size_t>(i);
      if (layout == RopeLayout::kHalf) {
        angles[at] = c;
        angles[at + kDims / 2] = s;
      } else {
        angles[2 * at] = angles[2 * at + 1] = c;
        angles[kDims + 2 * at] = -s;
        angles[kDims + 2 * at + 1] = s;
      }
    }
    const float* row = angles.data();
    RotateRows(layout, kDims, &row, View(&values, 1, kWidth, kWidth));
    for (int64_t i = 0; i < kDims / 2; ++i) {
      const bool half = layout == RopeLayout::kHalf;
      const size_t x = static_cast<size_t>(half ? i : 2 * i);
      const size_t y = static_cast<size_t>(half ? i + kDims / 2 : 2 * i + 1);
      const float c = std::cos(static_cast<float>(i)), s = std::sin(static_cast<float>(i));
      EXPECT_NEAR(values[x], raw[x] * c - raw[y] * s, 3e-7);
      EXPECT_NEAR(values[y], raw[y] * c + raw[x] * s, 3e-7);
    }
    for (size_t i = kDims; i < kWidth; ++i) EXPECT_EQ(values[i], raw[i]);
  }
}

}  // namespace
}  // namespace headwise
