// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/single_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
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

class SingleRow : public ::testing::TestWithParam<TileType> {};

TEST_P(SingleRow, ScoresAreDotProductsWhateverTheWidths) {
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

TEST_P(SingleRow, WeightedRowsAreAdded) {
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

INSTANTIATE_TEST_SUITE_P(Types, SingleRow, ::testing::Values(TileType::kF32, TileType::kBf16),
                         [](const auto& type) {
                           return type.param == TileType::kF32 ? "F32" : "BF16";
                         });

}  // namespace
}  // namespace headwise
