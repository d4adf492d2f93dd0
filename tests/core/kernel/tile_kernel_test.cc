// SPDX-License-Identifier: Apache-2.0
// What everything else rests on: the product is exact on integers, and a row's bits are its own.
#include "core/kernel/tile_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/kernel/packed_matrix.h"
#include "tests/support/compare.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

std::vector<KernelPath> Paths() {
  std::vector<KernelPath> paths;
  for (const KernelPath path : {KernelPath::kBrgemm, KernelPath::kPrimitive}) {
    if (KernelPathAvailable(path)) paths.push_back(path);
  }
  return paths;
}

std::vector<float> Multiply(KernelPath path, const TileShape& s, const std::vector<float>& a,
                            const std::vector<float>& b, float filling) {
  auto kernel = GetTileKernel(path, s);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  std::vector<float> c(static_cast<size_t>(s.m * s.ldc), filling);
  (*kernel)->Run(a.data(), b.data(), c.data());
  return c;
}

std::vector<float> SmallIntegers(int64_t count, int seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((i * 7 + seed * 13 + i / 5) % 9 - 4));
  }
  return values;
}

TEST(TileKernel, ThisMachineRunsTheMicrokernel) {
  // A machine that measures must not fall back unseen. AVX-512 has the microkernel, others may not.
  if (OneDnnIsaName().rfind("AVX512", 0) == 0) {
    EXPECT_EQ(BestKernelPath(), KernelPath::kBrgemm);
  } else {
    EXPECT_TRUE(KernelPathAvailable(BestKernelPath()));
  }
}

TEST(TileKernel, ExactOnSmallIntegers) {
  for (const KernelPath path : Paths()) {
    for (const int64_t m : {1, 3, 17, 64}) {
      for (const int64_t n : {1, 16, 48, 63}) {
        for (const int64_t k : {1, 5, 16, 100}) {
          for (const bool accumulate : {false, true}) {
            const TileShape s{m, n, k, k + 3, n + 1, n + 2, accumulate};
            const auto a = SmallIntegers(m * s.lda, 1), b = SmallIntegers(k * s.ldb, 2);
            // What is not accumulated into must be overwritten, whatever it holds.
            const float filling = accumulate ? 5.0f : std::numeric_limits<float>::quiet_NaN();
            const auto c = Multiply(path, s, a, b, filling);
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                float expected = accumulate ? 5.0f : 0.0f;
                for (int64_t x = 0; x < k; ++x) {
                  expected +=
                      a[static_cast<size_t>(i * s.lda + x)] * b[static_cast<size_t>(x * s.ldb + j)];
                }
                ASSERT_EQ(c[static_cast<size_t>(i * s.ldc + j)], expected)
                    << "path " << static_cast<int>(path) << " m " << m << " n " << n << " k " << k
                    << " at " << i << "," << j;
              }
            }
          }
        }
      }
    }
  }
}

TEST(TileKernel, ARowsBitsDoNotDependOnTheHeight) {
  for (const int64_t k : {32, 64, 768, 1024}) {
    constexpr int64_t kN = 64;
    const auto a = RandomFloats(64 * k, 1), b = RandomFloats(k * kN, 2);
    const auto whole = Multiply(KernelPath::kAuto, {64, kN, k, k, kN, kN, false}, a, b, 0.0f);
    for (int64_t m = 1; m < 64; ++m) {
      const auto part = Multiply(KernelPath::kAuto, {m, kN, k, k, kN, kN, false}, a, b, 0.0f);
      ASSERT_TRUE(SameBits(part, {whole.data(), part.size()})) << "m " << m << " k " << k;
    }
  }
}

TEST(PackedMatrix, LongSumsAreCutAtFixedPlaces) {
  // 2,500 = two whole chunks and a rest; 1,024 and 1,025 are the edges of the first.
  for (const int64_t depth : {1, 1024, 1025, 2048, 2500}) {
    constexpr int64_t kColumns = 70, kRows = 5;
    const auto weights = RandomFloats(kColumns * depth, 3), a = RandomFloats(kRows * depth, 4);
    auto packed =
        PackedMatrix::Pack(BestKernelPath(), weights, {}, kColumns, depth, {64, 6}, depth, 64);
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (size_t block = 0; block < 2; ++block) {
      std::vector<float> c(kRows * 64), one(64);
      packed->MultiplyBlock(block, a.data(), kRows, c.data());
      const auto& place = packed->blocks()[block];
      for (int64_t i = 0; i < kRows; ++i) {
        packed->MultiplyBlock(block, a.data() + i * depth, 1, one.data());
        for (int64_t j = 0; j < place.width; ++j) {
          double expected = 0.0;
          for (int64_t x = 0; x < depth; ++x) {
            expected +=
                static_cast<double>(a[static_cast<size_t>(i * depth + x)]) *
                static_cast<double>(weights[static_cast<size_t>((place.column + j) * depth + x)]);
          }
          const float value = c[static_cast<size_t>(i * 64 + j)];
          EXPECT_NEAR(static_cast<double>(value), expected,
                      1e-6 * std::sqrt(static_cast<double>(depth)) * 10.0);
          EXPECT_EQ(value, one[static_cast<size_t>(j)]) << "row alone, depth " << depth;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headwise
