// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A tile of rows that all see columns [begin, end), and where its results go.
struct Rows {
  Rows(std::vector<float> values, int64_t width, int32_t begin, int32_t end)
      : scores(std::move(values)),
        begins(scores.size() / static_cast<size_t>(width), begin),
        ends(begins.size(), end) {
    tile.scores = scores.data();
    tile.stride = tile.width = width;
    tile.rows = static_cast<int64_t>(begins.size());
    tile.begin = begins.data();
    tile.end = ends.data();
  }

  SoftmaxState Step(SoftmaxState state) {
    SoftmaxStep(tile, 0, &state);
    return state;
  }
  SoftmaxState Step() { return Step(SoftmaxState::Start(nullptr)); }

  std::vector<float> scores;
  std::vector<int32_t> begins, ends;
  SoftmaxTile tile;
};

// One row of 16 columns that sees all.
Rows OneRow(std::vector<float> values) { return Rows(std::move(values), 16, 0, 16); }

TEST(Softmax, EveryRangeAgreesWithDoubles) {
  for (const bool plain : {true, false}) {
    for (const int64_t width : {16, 48}) {
      for (int32_t begin = 0; begin <= width; ++begin) {
        for (int32_t end = begin; end <= width; ++end) {
          const std::vector<float> raw = RandomFloats(width, 9, 20.0f);
          Rows rows(raw, width, begin, end);
          rows.tile.scale = 0.5f;
          rows.tile.plain = plain;
          const SoftmaxState state = rows.Step();
          // Plain maxima are those of the raw scores.
          const double max = static_cast<double>(state.max[0]) * (plain ? 0.5 : 1.0);
          double sum = 0.0;
          for (int64_t j = 0; j < width; ++j) {
            const bool inside = j >= begin && j < end;
            const size_t i = static_cast<size_t>(j);
            const double expected =
                inside ? std::exp(0.5 * static_cast<double>(raw[i]) - max) : 0.0;
            EXPECT_NEAR(static_cast<double>(rows.scores[i]), expected, 2e-6 * expected + 1e-37);
            if (!inside) {
              EXPECT_EQ(rows.scores[i], 0.0f);
            }
            sum += expected;
          }
          EXPECT_NEAR(static_cast<double>(state.sum[0]), sum, 2e-6 * sum);
        }
      }
    }
  }
}

// What 7 rows see of `width` columns.
using Ranges = std::vector<std::pair<int32_t, int32_t>>;
std::vector<Ranges> ManyRanges(int32_t width) {
  std::vector<Ranges> all(5, Ranges(7, {0, width}));
  for (int32_t i = 0; i < 7; ++i) {
    const size_t row = static_cast<size_t>(i);
    all[1][row].second = width - 5;                    // keys that are no whole vectors
    all[2][row].second = width - 6 + i;                // causal
    all[3][row] = {i + 1, width - 6 + i};              // a window
    all[4][row] = {width / 2 + i % 3, width / 2 + 3};  // little in common
  }
  all[4][1] = {0, 0};
  return all;
}

TEST(Softmax, ManyRowsGiveWhatEachGivesAlone) {
  // Rows go four at a time where they can, and one by one elsewhere: the same bits.
  for (const int32_t width : {16, 32, 80, 256}) {
    for (const Ranges& ranges : ManyRanges(width)) {
      for (const bool bf16 : {false, true}) {
        const std::vector<float> raw = RandomFloats(7 * width, 3, 15.0f);
        Rows together(raw, width, 0, 0);
        for (size_t row = 0; row < 7; ++row) {
          std::tie(together.begins[row], together.ends[row]) = ranges[row];
        }
        std::vector<uint16_t> weights(raw.size());
        if (bf16) together.tile.bf16 = weights.data();
        together.tile.bf16_stride = width;
        const SoftmaxState state = together.Step();
        for (size_t row = 0; row < 7; ++row) {
          const auto begin = raw.begin() + static_cast<int64_t>(row) * width;
          Rows alone({begin, begin + width}, width, ranges[row].first, ranges[row].second);
          std::vector<uint16_t> own(static_cast<size_t>(width));
          if (bf16) alone.tile.bf16 = own.data();
          const SoftmaxState one = alone.Step();
          EXPECT_EQ(one.max[0], state.max[row]);
          EXPECT_EQ(one.sum[0], state.sum[row]) << "width " << width << " bf16 " << bf16;
          for (size_t j = 0; j < own.size(); ++j) {
            const size_t place = row * own.size() + j;
            if (bf16) {
              EXPECT_EQ(own[j], weights[place]);
            } else {
              EXPECT_EQ(alone.scores[j], together.scores[place]);
            }
          }
        }
      }
    }
  }
}

TEST(Softmax, Bf16WeightsAreRoundedAndSummedAsRounded) {
  const std::vector<float> raw = RandomFloats(48, 12, 6.0f);
  Rows exact(raw, 48, 1, 47);
  exact.Step();
  Rows rows(raw, 48, 1, 47);
  std::vector<uint16_t> weights(48, 1);
  rows.tile.bf16 = weights.data();
  rows.tile.bf16_stride = 48;
  const SoftmaxState state = rows.Step();
  double sum = 0.0;
  for (size_t j = 0; j < 48; ++j) {
    const double weight = static_cast<double>(Bf16ToFloat(weights[j]));
    const double right = static_cast<double>(exact.scores[j]);
    EXPECT_NEAR(weight, right, right * (1.0 / 256.0 + 2e-4));
    sum += weight;
  }
  EXPECT_NEAR(static_cast<double>(state.sum[0]), sum, 1e-6 * sum);
}

TEST(Softmax, BlocksGiveWhatTheWholeGives) {
  const std::vector<float> raw = RandomFloats(64, 4, 30.0f);
  Rows whole(raw, 64, 0, 64);
  const SoftmaxState at_once = whole.Step();
  SoftmaxState running = SoftmaxState::Start(nullptr);
  double output = 0.0;
  for (int64_t block = 0; block < 64; block += 16) {
    Rows part = OneRow({raw.begin() + block, raw.begin() + block + 16});
    running = part.Step(running);
    output *= static_cast<double>(running.factor[0]);
    for (const float weight : part.scores) output += static_cast<double>(weight);
  }
  EXPECT_EQ(running.max[0], at_once.max[0]);
  EXPECT_NEAR(static_cast<double>(running.sum[0]), static_cast<double>(at_once.sum[0]),
              1e-6 * static_cast<double>(at_once.sum[0]));
  EXPECT_NEAR(output, static_cast<double>(at_once.sum[0]), 1e-6 * output);
}

TEST(Softmax, HiddenIsInertAndVisibleNanStays) {
  std::vector<float> scores(16, kNaN);
  scores[3] = 1.0f;
  EXPECT_EQ(Rows(scores, 16, 3, 4).Step().sum[0], 1.0f);
  std::vector<float> seen(16, 1.0f);
  seen[5] = kNaN;
  EXPECT_TRUE(std::isnan(OneRow(seen).Step().sum[0]));
  EXPECT_TRUE(std::isnan(OneRow(std::vector<float>(16, kNaN)).Step().sum[0]))
      << "a row that sees NaN is not a row that sees nothing";
}

TEST(Softmax, MasksSelect) {
  std::vector<float> values(16, 2.0f);
  values[1] = kNaN;
  std::vector<uint8_t> keep(16, 0);
  keep[0] = keep[2] = 1;
  RowMask mask{.keep = keep.data()};
  Rows rows = OneRow(values);
  rows.tile.plain = false;
  rows.tile.masks = &mask;
  EXPECT_EQ(rows.Step().sum[0], 2.0f);
  EXPECT_EQ(rows.scores[0], 1.0f);
  EXPECT_EQ(rows.scores[1], 0.0f);
  mask.keep_is_drop = true;
  Rows again = OneRow(std::vector<float>(16, 2.0f));
  again.tile.plain = false;
  again.tile.masks = &mask;
  EXPECT_EQ(again.Step().sum[0], 14.0f);
}

TEST(Softmax, FiniteAdditiveIsAnOrdinaryNumber) {
  // -3.39e38 times log2 e would overflow: a row of equal, very negative scores averages evenly.
  const std::vector<float> additive(16, -3.39e38f);
  RowMask mask{.additive = additive.data()};
  Rows rows = OneRow(std::vector<float>(16, -20.0f));
  rows.tile.plain = false;
  rows.tile.masks = &mask;
  EXPECT_EQ(rows.Step().sum[0], 16.0f);
  const std::vector<float> hidden(16, -kInf);
  mask.additive = hidden.data();
  Rows none = OneRow(std::vector<float>(16, 5.0f));
  none.tile.plain = false;
  none.tile.masks = &mask;
  const SoftmaxState state = none.Step();
  EXPECT_EQ(state.factor[0], 1.0f);
  EXPECT_EQ(state.sum[0], 0.0f);
}

TEST(Softmax, ASinkTakesItsShareOfTheSum) {
  const float sink = 1.5f;
  Rows rows = OneRow(std::vector<float>(16, 1.0f));
  rows.tile.plain = false;
  const SoftmaxState state = rows.Step(SoftmaxState::Start(&sink));
  const double weight = static_cast<double>(rows.scores[0] / state.sum[0]);
  EXPECT_NEAR(weight, std::exp(1.0) / (16.0 * std::exp(1.0) + std::exp(1.5)), 1e-7);
}

TEST(Softmax, TheLargestKeysWeightIsExactlyOne) {
  for (const float score : {0.1f, 30.3f, -17.7f, 1e-20f, 3e30f}) {
    std::vector<float> scores(16, -3e38f);
    scores[7] = score;
    Rows rows = OneRow(scores);
    rows.tile.scale = 0.3f;
    EXPECT_EQ(rows.Step().sum[0], 1.0f) << score;
    EXPECT_EQ(rows.scores[7], 1.0f);
  }
}

TEST(Softmax, TransformAddsTheBiasThenBends) {
  const std::vector<float> in = RandomFloats(37, 6, 400.0f), bias = RandomFloats(37, 7, 3.0f);
  std::vector<float> out(37);
  TransformScores({0.125f, bias.data(), 20.0f}, in.data(), 37, out.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const double t = 0.125 * static_cast<double>(in[i]) + static_cast<double>(bias[i]);
    const double expected = 20.0 * std::tanh(t / 20.0);
    EXPECT_NEAR(static_cast<double>(out[i]), expected, 2e-6 * std::fabs(expected) + 1e-7);
  }
}

TEST(Softmax, TheSoftcapsTanhIsRightEverywhere) {
  std::vector<float> in;
  for (float x = -12.0f; x <= 12.0f; x += 0.003f) in.push_back(x);
  in.insert(in.end(), {1e-30f, -1e-8f, 100.0f, -1e30f});
  std::vector<float> out(in.size());
  TransformScores({1.0f, nullptr, 1.0f}, in.data(), static_cast<int64_t>(in.size()), out.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const double expected = std::tanh(static_cast<double>(in[i]));
    EXPECT_NEAR(static_cast<double>(out[i]), expected, 1e-6 * std::fabs(expected)) << in[i];
  }
}

TEST(Softmax, FinishGivesTheWeights) {
  for (const float unit : {1.0f, 1.25f}) {
    std::vector<float> p = {0.5f, 1.0f, 0.0f};
    const float then = 1.0f, now = 3.0f;
    FinishWeights(unit, then, now, 4.0f, 3, p.data());
    const double moved = std::exp2(-2.0 * static_cast<double>(unit));
    EXPECT_NEAR(static_cast<double>(p[1]), moved / 4.0, 1e-8);
    EXPECT_NEAR(static_cast<double>(p[0]), moved / 8.0, 1e-8);
    EXPECT_EQ(p[2], 0.0f);
    FinishWeights(unit, now, now, 0.0f, 3, p.data());
    EXPECT_EQ(p[1], 0.0f) << "a row that saw no key";
  }
}

}  // namespace
}  // namespace headwise
