// SPDX-License-Identifier: Apache-2.0
// What everything else rests on: the product is exact on integers, and a row's bits are its own.
#include "core/kernel/tile_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/dtype.h"
#include "core/kernel/packed_matrix.h"
#include "core/kernel/quantise.h"
#include "tests/support/compare.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

constexpr TileType kTypes[] = {TileType::kF32, TileType::kBf16, TileType::kU8S8};

std::vector<KernelPath> Paths(TileType type) {
  std::vector<KernelPath> paths;
  for (const KernelPath path : {KernelPath::kBrgemm, KernelPath::kPrimitive}) {
    if (KernelPathAvailable(path, type)) paths.push_back(path);
  }
  return paths;
}

// A matrix of whole numbers in the bytes of a tile's operand.
struct Operand {
  std::vector<uint8_t> bytes;
  std::vector<int64_t> numbers;  // [rows, stride]
};

void PutNumber(TileType type, bool left, int64_t value, uint8_t* place) {
  const float number = static_cast<float>(value);
  const uint16_t bits = FloatToBf16(number);
  switch (type) {
    case TileType::kF32:
      std::memcpy(place, &number, sizeof(number));
      break;
    case TileType::kBf16:
      std::memcpy(place, &bits, sizeof(bits));
      break;
    case TileType::kU8S8:
      *place = left ? static_cast<uint8_t>(value + 128) : static_cast<uint8_t>(value);
      break;
  }
}

// Numbers of [-limit, limit]. `interleave` rows lie together, as a right operand's do.
Operand MakeOperand(TileType type, bool left, int64_t rows, int64_t stride, int64_t limit,
                    int64_t seed) {
  const int64_t group = left ? 1 : Interleave(type);
  const int64_t bytes = ElementBytes(type);
  Operand operand;
  operand.bytes.assign(static_cast<size_t>(RoundUp(rows, group) * stride * bytes), 0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const int64_t value = ((i * stride + j) * 7 + seed * 13 + i) % (2 * limit + 1) - limit;
      const int64_t at = i / group * stride * group + j * group + i % group;
      PutNumber(type, left, value, operand.bytes.data() + at * bytes);
      operand.numbers.push_back(value);
    }
  }
  return operand;
}

// C as numbers, whatever its type.
std::vector<int64_t> Multiply(KernelPath path, const TileShape& s, const Operand& a,
                              const Operand& b, int64_t filling) {
  auto kernel = GetTileKernel(path, s);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  std::vector<float> c(static_cast<size_t>(s.m * s.ldc), static_cast<float>(filling));
  std::vector<int32_t> sums(c.size(), static_cast<int32_t>(filling));
  const bool exact = s.type == TileType::kU8S8;
  (*kernel)->Run(a.bytes.data(), b.bytes.data(),
                 exact ? static_cast<void*>(sums.data()) : static_cast<void*>(c.data()));
  std::vector<int64_t> result(sums.begin(), sums.end());
  if (!exact) {
    for (size_t i = 0; i < c.size(); ++i) result[i] = static_cast<int64_t>(c[i]);
  }
  return result;
}

TEST(TileKernel, ThisMachineRunsTheMicrokernel) {
  // A machine that measures must not fall back unseen. AVX-512 has the microkernel, others may not.
  if (OneDnnIsaName().rfind("AVX512", 0) == 0) {
    EXPECT_EQ(BestKernelPath(), KernelPath::kBrgemm);
  } else {
    EXPECT_TRUE(KernelPathAvailable(BestKernelPath()));
  }
  if (OneDnnIsaName() == "AVX512_CORE_BF16") {
    EXPECT_EQ(BestKernelPath(TileType::kBf16), KernelPath::kBrgemm);
    EXPECT_EQ(BestKernelPath(TileType::kU8S8), KernelPath::kBrgemm);
  }
}

// Every element against whole numbers, over edges of vectors and groups; 8-bit numbers as large as
// they get, which 16-bit sums would not survive.
TEST(TileKernel, ExactOnIntegers) {
  for (const TileType type : kTypes) {
    const int64_t limit = type == TileType::kU8S8 ? 127 : 4;
    for (const KernelPath path : Paths(type)) {
      for (const int64_t m : {1, 3, 17, 64}) {
        for (const int64_t n : {1, 16, 48, 63}) {
          for (const int64_t k : {1, 5, 16, 100, 1024}) {
            for (const bool accumulate : {false, true}) {
              const TileShape s{type, m, n, k, k + 3, n + 1, n + 2, accumulate};
              const Operand a = MakeOperand(type, true, m, s.lda, limit, 1);
              const Operand b = MakeOperand(type, false, k, s.ldb, limit, 2);
              // What is not accumulated into must be overwritten.
              const auto c = Multiply(path, s, a, b, 5);
              for (int64_t i = 0; i < m; ++i) {
                for (int64_t j = 0; j < n; ++j) {
                  int64_t expected = accumulate ? 5 : 0;
                  for (int64_t x = 0; x < k; ++x) {
                    const int64_t offset = type == TileType::kU8S8 ? 128 : 0;
                    expected += (a.numbers[static_cast<size_t>(i * s.lda + x)] + offset) *
                                b.numbers[static_cast<size_t>(x * s.ldb + j)];
                  }
                  ASSERT_EQ(c[static_cast<size_t>(i * s.ldc + j)], expected)
                      << "type " << static_cast<int>(type) << " path " << static_cast<int>(path)
                      << " m " << m << " n " << n << " k " << k << " at " << i << "," << j;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(TileKernel, NoTypesWithWrongNumbersAreUsed) {
  // What is available has been tried; the types that aren't have a path all the same.
  for (const TileType type : kTypes) {
    EXPECT_TRUE(KernelPathAvailable(BestKernelPath(type), type));
    EXPECT_TRUE(KernelPathAvailable(KernelPath::kPrimitive, type));
  }
}

// Random numbers in an operand's bytes.
std::vector<uint8_t> RandomOperand(TileType type, int64_t count, uint32_t seed) {
  const std::vector<float> values = RandomFloats(count, seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count * ElementBytes(type)));
  for (int64_t i = 0; i < count; ++i) {
    uint8_t* place = bytes.data() + i * ElementBytes(type);
    if (type == TileType::kU8S8) {
      *place = static_cast<uint8_t>(i * 37 + seed);
    } else if (type == TileType::kBf16) {
      const uint16_t bits = FloatToBf16(values[static_cast<size_t>(i)]);
      std::memcpy(place, &bits, sizeof(bits));
    } else {
      std::memcpy(place, &values[static_cast<size_t>(i)], sizeof(float));
    }
  }
  return bytes;
}

TEST(TileKernel, ARowsBitsDoNotDependOnTheHeightNorTheWidth) {
  for (const TileType type : kTypes) {
    for (const KernelPath path : Paths(type)) {
      for (const int64_t k : {32, 64, 768, 1024}) {
        constexpr int64_t kN = 64;
        const auto a = RandomOperand(type, 64 * k, 1), b = RandomOperand(type, k * kN, 2);
        const auto run = [&](int64_t m, int64_t n) {
          auto kernel = GetTileKernel(path, {type, m, n, k, k, kN, kN, false});
          EXPECT_TRUE(kernel.ok()) << kernel.status();
          std::vector<float> c(static_cast<size_t>(m * kN), 0.0f);
          (*kernel)->Run(a.data(), b.data(), c.data());
          return c;
        };
        const auto whole = run(64, kN);
        for (int64_t m = 1; m < 64; m += path == KernelPath::kBrgemm ? 1 : 9) {
          const auto part = run(m, kN);
          ASSERT_TRUE(SameBits(part, {whole.data(), part.size()}))
              << "type " << static_cast<int>(type) << " m " << m << " k " << k;
        }
        if (path != KernelPath::kBrgemm) continue;
        for (const int64_t n : {16, 32, 48}) {
          const auto part = run(64, n);
          for (size_t i = 0; i < 64; ++i) {
            ASSERT_EQ(std::memcmp(&part[i * kN], &whole[i * kN], static_cast<size_t>(n) * 4), 0)
                << "type " << static_cast<int>(type) << " n " << n << " k " << k;
          }
        }
      }
    }
  }
}

// A matrix in `type` with what it should give.
struct PackedCase {
  PackedMatrix packed;
  std::vector<float> weights, a;
  int64_t depth;
};

PackedCase MakePacked(TileType type, int64_t columns, int64_t depth, int64_t rows,
                      const std::vector<int64_t>& parts) {
  PackedCase c{{}, RandomFloats(columns * depth, 3), RandomFloats(rows * depth, 4), depth};
  auto packed = PackedMatrix::Pack(BestKernelPath(type), type, c.weights, {},
                                   {columns, depth, {64, columns - 64}, parts}, 64);
  EXPECT_TRUE(packed.ok()) << packed.status();
  if (packed.ok()) c.packed = *std::move(packed);
  return c;
}

// <a row, weight row> over depth [begin, end), both as the type rounds them.
double Expected(const PackedCase& c, TileType type, int64_t row, int64_t column, int64_t begin,
                int64_t end) {
  const float* a = c.a.data() + row * c.depth;
  const float* w = c.weights.data() + column * c.depth;
  const float scale_a = QuantiseScale(LargestMagnitude(a, c.depth));
  const float scale_w = QuantiseScale(LargestMagnitude(w, c.depth));
  double sum = 0.0;
  for (int64_t k = begin; k < end; ++k) {
    if (type == TileType::kU8S8) {
      sum += std::nearbyint(static_cast<double>(a[k] / scale_a)) *
             std::nearbyint(static_cast<double>(w[k] / scale_w));
    } else if (type == TileType::kBf16) {
      sum += static_cast<double>(Bf16ToFloat(FloatToBf16(a[k]))) *
             static_cast<double>(Bf16ToFloat(FloatToBf16(w[k])));
    } else {
      sum += static_cast<double>(a[k]) * static_cast<double>(w[k]);
    }
  }
  if (type == TileType::kU8S8) sum *= static_cast<double>(scale_a) * static_cast<double>(scale_w);
  return sum;
}

TEST(PackedMatrix, LongSumsAreCutAtFixedPlaces) {
  // 2,500 = two whole chunks and a rest; 1,024 and 1,025 are the edges of the first.
  constexpr int64_t kColumns = 70, kRows = 5;
  for (const TileType type : kTypes) {
    for (const int64_t depth : {1, 3, 1024, 1025, 2048, 2500}) {
      const PackedCase c = MakePacked(type, kColumns, depth, kRows, {});
      RowScratch scratch;
      for (size_t block = 0; block < 2; ++block) {
        std::vector<float> together(kRows * 64), one(64);
        c.packed.MultiplyBlock(block, c.packed.MakeRows(c.a.data(), kRows, nullptr, &scratch),
                               together.data());
        const auto& place = c.packed.blocks()[block];
        for (int64_t i = 0; i < kRows; ++i) {
          const float* row = c.a.data() + i * depth;
          c.packed.MultiplyBlock(block, c.packed.MakeRows(row, 1, nullptr, &scratch), one.data());
          for (int64_t j = 0; j < place.width; ++j) {
            const double expected = Expected(c, type, i, place.column + j, 0, depth);
            const float value = together[static_cast<size_t>(i * 64 + j)];
            EXPECT_NEAR(static_cast<double>(value), expected,
                        1e-6 * std::sqrt(static_cast<double>(depth)) * 10.0);
            EXPECT_EQ(value, one[static_cast<size_t>(j)]) << "row alone, depth " << depth;
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, PartsAreMultipliedApartAndAddUp) {
  const std::vector<int64_t> parts = {5, 1, 16, 30};
  constexpr int64_t kDepth = 52, kRows = 3;
  for (const TileType type : kTypes) {
    const PackedCase c = MakePacked(type, 70, kDepth, kRows, parts);
    RowScratch scratch;
    const TileRows rows = c.packed.MakeRows(c.a.data(), kRows, nullptr, &scratch);
    for (size_t block = 0; block < 2; ++block) {
      const auto& place = c.packed.blocks()[block];
      int64_t begin = 0;
      for (size_t part = 0; part < parts.size(); ++part) {
        std::vector<float> result(kRows * 64);
        c.packed.MultiplyPart(block, static_cast<int64_t>(part), rows, result.data());
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < place.width; ++j) {
            EXPECT_NEAR(static_cast<double>(result[static_cast<size_t>(i * 64 + j)]),
                        Expected(c, type, i, place.column + j, begin, begin + parts[part]), 5e-6);
          }
        }
        begin += parts[part];
      }
    }
  }
}

TEST(PackedMatrix, ColumnsMayComeInAnyPiecesAndOrder) {
  constexpr int64_t kColumns = 230, kDepth = 52, kRows = 3;
  const std::vector<int64_t> widths = {128, 64, 38}, parts = {5, 1, 16, 30};
  const std::vector<float> weights = RandomFloats(kColumns * kDepth, 3);
  const std::vector<float> a = RandomFloats(kRows * kDepth, 4);
  for (const TileType type : kTypes) {
    const MatrixShape shape{kColumns, kDepth, widths, parts};
    auto whole = PackedMatrix::Pack(BestKernelPath(type), type, weights, {}, shape, 128);
    auto pieces = PackedMatrix::Prepare(BestKernelPath(type), type, {}, shape, 128);
    ASSERT_TRUE(whole.ok() && pieces.ok());
    for (const auto& [first, count] : {std::pair{70, 160}, {0, 1}, {3, 67}, {1, 2}}) {
      pieces->PackColumns(first, count, weights.data() + first * kDepth);
    }
    RowScratch scratch;
    const TileRows rows = whole->MakeRows(a.data(), kRows, nullptr, &scratch);
    for (size_t block = 0; block < widths.size(); ++block) {
      std::vector<float> expected(kRows * 128), actual(kRows * 128);
      whole->MultiplyBlock(block, rows, expected.data());
      pieces->MultiplyBlock(block, rows, actual.data());
      EXPECT_EQ(actual, expected) << "block " << block;
    }
  }
}

TEST(PackedMatrix, AllZeroRowsAndChannelsAreExactZerosInInt8) {
  std::vector<float> weights = RandomFloats(70 * 8, 1), a = RandomFloats(2 * 8, 2);
  std::fill_n(weights.begin() + 3 * 8, 8, 0.0f);
  std::fill_n(a.begin() + 8, 8, 0.0f);
  auto packed = PackedMatrix::Pack(BestKernelPath(TileType::kU8S8), TileType::kU8S8, weights, {},
                                   {70, 8, {64, 6}, {}}, 64);
  ASSERT_TRUE(packed.ok());
  RowScratch scratch;
  std::vector<float> c(2 * 64, 1.0f);
  packed->MultiplyBlock(0, packed->MakeRows(a.data(), 2, nullptr, &scratch), c.data());
  EXPECT_EQ(c[3], 0.0f);
  EXPECT_NE(c[2], 0.0f);
  for (size_t j = 0; j < 64; ++j) EXPECT_EQ(c[64 + j], 0.0f);
}

TEST(PackedMatrix, ARowWithoutNumbersSpoilsItselfAlone) {
  const std::vector<float> weights = RandomFloats(70 * 8, 1);
  std::vector<float> a = RandomFloats(3 * 8, 2);
  a[8 + 2] = std::numeric_limits<float>::quiet_NaN();
  a[16 + 5] = std::numeric_limits<float>::infinity();
  for (const TileType type : kTypes) {
    auto packed =
        PackedMatrix::Pack(BestKernelPath(type), type, weights, {}, {70, 8, {64, 6}, {}}, 64);
    ASSERT_TRUE(packed.ok());
    RowScratch scratch;
    std::vector<float> c(3 * 64);
    packed->MultiplyBlock(0, packed->MakeRows(a.data(), 3, nullptr, &scratch), c.data());
    EXPECT_TRUE(std::isfinite(c[5]));
    EXPECT_TRUE(std::isnan(c[64 + 5]));
    EXPECT_FALSE(std::isfinite(c[128 + 5]));
  }
}

}  // namespace
}  // namespace headwise
