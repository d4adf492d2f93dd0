// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/thin_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/kernel/tile_sizes.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

// A matrix [rows, columns] in the numbers of `type`, g rows interleaved and filled up with zeros.
struct Interleaved {
  std::vector<float> floats;
  std::vector<uint16_t> halves;
  const void* data() const {
    return halves.empty() ? static_cast<const void*>(floats.data()) : halves.data();
  }
};

Interleaved Interleave(TileType type, const std::vector<float>& matrix, int64_t rows,
                       int64_t columns) {
  if (type == TileType::kF32) return {matrix, {}};
  Interleaved out;
  out.halves.resize(static_cast<size_t>(RoundUp(rows, 2) * columns), 0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      out.halves[static_cast<size_t>(InterleavedIndex(2, columns, i, j))] =
          FloatToBf16(matrix[static_cast<size_t>(i * columns + j)]);
    }
  }
  return out;
}

// A row with a NaN behind its end, which nobody may read into a sum.
Interleaved Row(TileType type, std::vector<float> row) {
  row.push_back(std::numeric_limits<float>::quiet_NaN());
  if (type == TileType::kF32) return {row, {}};
  Interleaved out;
  for (const float value : row) out.halves.push_back(FloatToBf16(value));
  return out;
}

double Rounded(TileType type, float value) {
  return static_cast<double>(type == TileType::kF32 ? value : Bf16ToFloat(FloatToBf16(value)));
}

class ThinProducts : public ::testing::TestWithParam<TileType> {};

TEST_P(ThinProducts, ScoresOfARowAreDotProductsWhateverTheWidths) {
  for (const int64_t dk : {1, 2, 5, 16, 64, 129}) {
    for (const int64_t panel : {16, 48, 64}) {
      for (int64_t columns = 16; columns <= panel; columns += 16) {
        const std::vector<float> q = RandomFloats(dk, 1), kt = RandomFloats(dk * panel, 2);
        std::vector<float> scores(static_cast<size_t>(columns + 1), 7.0f);
        ScoreRow(GetParam(), Row(GetParam(), q).data(),
                 Interleave(GetParam(), kt, dk, panel).data(), dk, panel, columns, scores.data());
        for (int64_t j = 0; j < columns; ++j) {
          double expected = 0.0, size = 0.0;
          for (int64_t d = 0; d < dk; ++d) {
            const double term = Rounded(GetParam(), q[static_cast<size_t>(d)]) *
                                Rounded(GetParam(), kt[static_cast<size_t>(d * panel + j)]);
            expected += term;
            size += std::fabs(term);
          }
          EXPECT_NEAR(scores[static_cast<size_t>(j)], expected,
                      static_cast<double>(dk) * 6e-8 * size + 1e-30);
        }
        EXPECT_EQ(scores.back(), 7.0f);
      }
    }
  }
}

TEST_P(ThinProducts, WeightedRowsAreAdded) {
  for (const int64_t keys : {16, 64, 512}) {
    for (const int64_t dv : {1, 3, 16, 63, 64, 100, 128, 200}) {
      const std::vector<float> weights = RandomFloats(keys, 3), v = RandomFloats(keys * dv, 4);
      std::vector<float> output = RandomFloats(dv + 1, 5);
      const std::vector<float> before = output;
      AddWeightedRows(GetParam(), Row(GetParam(), weights).data(),
                      Interleave(GetParam(), v, keys, dv).data(), keys, dv, output.data());
      for (int64_t d = 0; d < dv; ++d) {
        double expected = static_cast<double>(before[static_cast<size_t>(d)]);
        double size = std::fabs(expected);
        for (int64_t j = 0; j < keys; ++j) {
          const double term = Rounded(GetParam(), weights[static_cast<size_t>(j)]) *
                              Rounded(GetParam(), v[static_cast<size_t>(j * dv + d)]);
          expected += term;
          size += std::fabs(term);
        }
        EXPECT_NEAR(output[static_cast<size_t>(d)], expected,
                    static_cast<double>(keys) * 6e-8 * size);
      }
      EXPECT_EQ(output.back(), before.back());
    }
  }
}

// Rows of numbers of `type`, kScoreStride apart, NaN in columns beside [first, last).
struct Rows {
  std::vector<float> floats;
  std::vector<uint16_t> halves;

  Rows(TileType type, int64_t count, int64_t first, int64_t last, uint32_t seed)
      : floats(RandomFloats(count * kScoreStride, seed)) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < kScoreStride; ++j) {
        if (j < first || j >= last) at(i, j) = std::numeric_limits<float>::quiet_NaN();
      }
    }
    if (type == TileType::kF32) return;
    for (float& value : floats) {
      halves.push_back(FloatToBf16(value));
      value = Bf16ToFloat(halves.back());
    }
  }
  float& at(int64_t row, int64_t column) {
    return floats[static_cast<size_t>(row * kScoreStride + column)];
  }
  const void* data() const {
    return halves.empty() ? static_cast<const void*>(floats.data()) : halves.data();
  }
};

TEST_P(ThinProducts, FeaturesApartAreAdded) {
  constexpr int64_t kStride = 80;
  for (const auto& [first, last] :
       {std::pair<int64_t, int64_t>{0, 16}, {0, 512}, {16, 32}, {16, 64}, {48, 336}, {32, 48}}) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 64}) {
      for (int64_t features = 1; features <= kFewFeatures; ++features) {
        Rows weights(GetParam(), rows, first, last, 6), v(GetParam(), features, first, last, 7);
        std::vector<float> output = RandomFloats(rows * kStride, 8);
        const std::vector<float> before = output;
        AddFeaturesApart(GetParam(), weights.data(), rows, {v.data(), features, kScoreStride},
                         first, last, output.data(), kStride);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t d = 0; d < kStride; ++d) {
            const size_t at = static_cast<size_t>(i * kStride + d);
            if (d >= features) {
              EXPECT_EQ(output[at], before[at]);
              continue;
            }
            double expected = static_cast<double>(before[at]), size = std::fabs(expected);
            for (int64_t j = first; j < last; ++j) {
              const double term =
                  static_cast<double>(weights.at(i, j)) * static_cast<double>(v.at(d, j));
              expected += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(output[at], expected, static_cast<double>(last - first) * 6e-8 * size)
                << rows << " rows, " << features << " features, columns " << first << " to "
                << last;
          }
        }
      }
    }
  }
}

// What batch independence rests on.
TEST_P(ThinProducts, FeaturesApartHaveTheSameBitsInAnyCompany) {
  constexpr int64_t kRows = 7, kFeatures = 5;
  Rows weights(GetParam(), kRows, 0, kScoreStride, 9),
      v(GetParam(), kFeatures, 0, kScoreStride, 10);
  const int64_t bytes = ElementBytes(GetParam());
  std::vector<float> together(kRows * kFeatures, 0.0f);
  AddFeaturesApart(GetParam(), weights.data(), kRows, {v.data(), kFeatures, kScoreStride}, 16, 176,
                   together.data(), kFeatures);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t d = 0; d < kFeatures; ++d) {
      // Alone, and in a longer range with zeros where the other one doesn't reach.
      std::vector<char> longer(static_cast<size_t>(kScoreStride * bytes), 0);
      std::memcpy(longer.data() + 16 * bytes,
                  static_cast<const char*>(weights.data()) + (i * kScoreStride + 16) * bytes,
                  static_cast<size_t>(160 * bytes));
      float alone = 0.0f;
      AddFeaturesApart(
          GetParam(), longer.data(), 1,
          {static_cast<const char*>(v.data()) + d * kScoreStride * bytes, 1, kScoreStride}, 0, 208,
          &alone, 1);
      EXPECT_EQ(alone, together[static_cast<size_t>(i * kFeatures + d)]) << i << " " << d;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ThinProducts, ::testing::Values(TileType::kF32, TileType::kBf16),
                         [](const auto& type) {
                           return type.param == TileType::kF32 ? "F32" : "BF16";
                         });

}  // namespace
}  // namespace headwise
