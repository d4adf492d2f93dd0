// SPDX-License-Identifier: Apache-2.0
// A tile kernel is shared by all workers: running it at once from several threads, each on numbers
// of its own, gives each of them its own exact product.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/base/worker_pool.h"
#include "core/kernel/tile_kernel.h"
#include "gtest/gtest.h"

namespace headwise {
namespace {

// Small integers, so that sums are exact in any order.
std::vector<float> SmallIntegers(int64_t count, int64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t mixed = (static_cast<int64_t>(i) + 1) * (2 * seed + 3) % 11;
    values[i] = static_cast<float>(mixed % 7 - 3);
  }
  return values;
}

// Number of wrong results among `runs` of the kernel on one thread's own numbers.
int CountWrong(const TileKernel& kernel, const TileShape& s, int64_t seed, int runs) {
  UseOneOpenMpThread();
  const std::vector<float> a = SmallIntegers(s.m * s.lda, seed);
  const std::vector<float> b = SmallIntegers(s.k * s.ldb, seed + 100);
  std::vector<float> expected(static_cast<size_t>(s.m * s.ldc), 0.0f);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t k = 0; k < s.k; ++k) {
      for (int64_t j = 0; j < s.n; ++j) {
        expected[static_cast<size_t>(i * s.ldc + j)] +=
            a[static_cast<size_t>(i * s.lda + k)] * b[static_cast<size_t>(k * s.ldb + j)];
      }
    }
  }
  int wrong = 0;
  std::vector<float> c(expected.size());
  for (int run = 0; run < runs; ++run) {
    std::fill(c.begin(), c.end(), 0.0f);
    kernel.Run(a.data(), b.data(), c.data());
    if (c != expected) ++wrong;
  }
  return wrong;
}

TEST(TileKernelThreads, ManyThreadsRunOneKernel) {
  for (const KernelPath path : {KernelPath::kBrgemm, KernelPath::kPrimitive}) {
    if (!KernelPathAvailable(path)) continue;
    for (const TileShape& shape :
         std::vector<TileShape>{{TileType::kF32, 64, 64, 384, 384, 64, 64, false},
                                {TileType::kF32, 64, 64, 256, 256, 64, 64, true},
                                {TileType::kF32, 64, 256, 64, 64, 256, 256, false},
                                {TileType::kF32, 33, 48, 48, 48, 48, 64, false}}) {
      const auto kernel = GetTileKernel(path, shape);
      ASSERT_TRUE(kernel.ok()) << kernel.status();
      std::atomic<int> wrong = 0;
      std::vector<std::thread> threads;
      for (int64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] { wrong += CountWrong(**kernel, shape, t, 1500); });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(wrong, 0) << "path " << static_cast<int>(path) << ", " << shape.m << "x" << shape.n
                          << "x" << shape.k;
    }
  }
}

}  // namespace
}  // namespace headwise
