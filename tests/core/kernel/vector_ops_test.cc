// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/vector_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/test_layer.h"

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

SoftmaxState Start() { return {-kInf, 0.0f}; }

SoftmaxRow Row(std::vector<float>* scores, int64_t begin, int64_t end, float scale = 1.0f) {
  return {.scores = scores->data(),
          .width = static_cast<int64_t>(scores->size()),
          .begin = begin,
          .end = end,
          .scale = scale,
          .keep = nullptr,
          .additive = nullptr,
          .keep_is_drop = false};
}

TEST(Softmax, EveryRangeAgreesWithDoubles) {
  for (const int64_t width : {16, 48}) {
    for (int64_t begin = 0; begin <= width; ++begin) {
      for (int64_t end = begin; end <= width; ++end) {
        const std::vector<float> raw = RandomFloats(width, 9, 20.0f);
        std::vector<float> scores = raw;
        SoftmaxState state = Start();
        SoftmaxStep(Row(&scores, begin, end, 0.5f), &state);
        double sum = 0.0;
        for (int64_t j = 0; j < width; ++j) {
          const bool inside = j >= begin && j < end;
          const size_t i = static_cast<size_t>(j);
          const double expected =
              inside ? std::exp(0.5 * static_cast<double>(raw[i]) - static_cast<double>(state.max))
                     : 0.0;
          EXPECT_NEAR(static_cast<double>(scores[i]), expected, 2e-6 * expected + 1e-37);
          if (!inside) {
            EXPECT_EQ(scores[i], 0.0f);
          }
          sum += expected;
        }
        EXPECT_NEAR(static_cast<double>(state.sum), sum, 2e-6 * sum);
      }
    }
  }
}

TEST(Softmax, BlocksGiveWhatTheWholeGives) {
  const std::vector<float> raw = RandomFloats(64, 4, 30.0f);
  std::vector<float> whole = raw;
  SoftmaxState at_once = Start();
  SoftmaxStep(Row(&whole, 0, 64), &at_once);
  SoftmaxState running = Start();
  for (int64_t block = 0; block < 64; block += 16) {
    std::vector<float> part(raw.begin() + block, raw.begin() + block + 16);
    SoftmaxStep(Row(&part, 0, 16), &running);
  }
  EXPECT_EQ(running.max, at_once.max);
  EXPECT_NEAR(static_cast<double>(running.sum), static_cast<double>(at_once.sum),
              1e-6 * static_cast<double>(at_once.sum));
}

TEST(Softmax, HiddenIsInertAndVisibleNanStays) {
  std::vector<float> scores(16, kNaN);
  scores[3] = 1.0f;
  SoftmaxState state = Start();
  SoftmaxStep(Row(&scores, 3, 4), &state);
  EXPECT_EQ(state.sum, 1.0f);
  std::vector<float> seen(16, 1.0f);
  seen[5] = kNaN;
  state = Start();
  SoftmaxStep(Row(&seen, 0, 16), &state);
  EXPECT_TRUE(std::isnan(state.sum));
  std::vector<float> only_nan(16, kNaN);
  state = Start();
  SoftmaxStep(Row(&only_nan, 0, 16), &state);
  EXPECT_TRUE(std::isnan(state.sum)) << "a row that sees NaN is not a row that sees nothing";
}

TEST(Softmax, MasksSelect) {
  std::vector<float> scores(16, 2.0f);
  scores[1] = kNaN;
  std::vector<uint8_t> keep(16, 0);
  keep[0] = keep[2] = 1;
  SoftmaxRow row = Row(&scores, 0, 16);
  row.keep = keep.data();
  SoftmaxState state = Start();
  SoftmaxStep(row, &state);
  EXPECT_EQ(state.sum, 2.0f);
  EXPECT_EQ(scores[0], 1.0f);
  EXPECT_EQ(scores[1], 0.0f);
  row.keep_is_drop = true;
  std::vector<float> again(16, 2.0f);
  row.scores = again.data();
  state = Start();
  SoftmaxStep(row, &state);
  EXPECT_EQ(state.sum, 14.0f);
}

TEST(Softmax, FiniteAdditiveIsAnOrdinaryNumber) {
  // -3.39e38 times log2 e would overflow: a row of equal, very negative scores averages evenly.
  std::vector<float> scores(16, -20.0f);
  const std::vector<float> additive(16, -3.39e38f);
  SoftmaxRow row = Row(&scores, 0, 16);
  row.additive = additive.data();
  SoftmaxState state = Start();
  SoftmaxStep(row, &state);
  EXPECT_EQ(state.sum, 16.0f);
  const std::vector<float> hidden(16, -kInf);
  std::vector<float> none(16, 5.0f);
  row.scores = none.data();
  row.additive = hidden.data();
  state = Start();
  EXPECT_EQ(SoftmaxStep(row, &state), 1.0f);
  EXPECT_EQ(state.sum, 0.0f);
}

TEST(Softmax, FinishGivesTheWeights) {
  std::vector<float> scores = RandomFloats(32, 5, 3.0f);
  std::vector<float> again = scores;
  SoftmaxState state = Start();
  SoftmaxStep(Row(&scores, 2, 31), &state);
  SoftmaxFinish(Row(&again, 2, 31), state);
  double sum = 0.0;
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(again[i], scores[i] / state.sum, 1e-7);
    sum += static_cast<double>(again[i]);
  }
  EXPECT_NEAR(sum, 1.0, 1e-6);
}

TEST(VectorOps, GramOfSmallIntegersIsExact) {
  for (const int64_t rows : {1, 2, 4, 5, 9, 13}) {
    constexpr int64_t kTokens = 3, kWidth = 32;
    std::vector<float> m;
    for (int64_t i = 0; i < kTokens * rows * kWidth; ++i)
      m.push_back(static_cast<float>(i % 7 - 3));
    std::vector<double> gram(static_cast<size_t>(rows * rows), 1.0);
    AddGram(m.data(), kTokens, rows, kWidth, gram.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t s = r; s < rows; ++s) {
        double expected = 1.0;
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t c = 0; c < kWidth; ++c) {
            expected += static_cast<double>(m[static_cast<size_t>((t * rows + r) * kWidth + c)]) *
                        static_cast<double>(m[static_cast<size_t>((t * rows + s) * kWidth + c)]);
          }
        }
        EXPECT_EQ(gram[static_cast<size_t>(r * rows + s)], expected) << r << "," << s;
      }
    }
  }
}

TEST(VectorOps, TransposeCopiesEveryElement) {
  for (const int64_t rows : {1, 15, 16, 17, 64}) {
    for (const int64_t columns : {1, 5, 64}) {
      const std::vector<float> in = RandomFloats(rows * (columns + 2), 1);
      std::vector<float> out(static_cast<size_t>(columns * (rows + 3)), kNaN);
      Transpose(in.data(), columns + 2, rows, columns, out.data(), rows + 3);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          EXPECT_EQ(out[static_cast<size_t>(c * (rows + 3) + r)],
                    in[static_cast<size_t>(r * (columns + 2) + c)]);
        }
      }
    }
  }
}

TEST(VectorOps, AllFiniteFindsEachKind) {
  for (const float bad : {kNaN, kInf, -kInf}) {
    for (size_t at = 0; at < 37; ++at) {
      std::vector<float> values(37, 3e38f);
      EXPECT_TRUE(AllFinite(values.data(), 37));
      values[at] = bad;
      EXPECT_FALSE(AllFinite(values.data(), 37)) << at;
    }
  }
}

}  // namespace
}  // namespace headwise
