// SPDX-License-Identifier: Apache-2.0
// The one product that everything is made of: a small tile C = A B or C += A B, by oneDNN.
#ifndef HEADWISE_CORE_KERNEL_TILE_KERNEL_H_
#define HEADWISE_CORE_KERNEL_TILE_KERNEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/kernel/kernel_path.h"

namespace headwise {

// What a product multiplies and sums.
enum class TileType : uint8_t {
  kF32,   // f32 x f32, summed in f32
  kBf16,  // bf16 x bf16, summed in f32
  kU8S8,  // u8 x s8, summed in s32: exact
};

// Bytes of an element of A and B.
constexpr int64_t ElementBytes(TileType type) {
  return type == TileType::kF32 ? 4 : type == TileType::kBf16 ? 2 : 1;
}

// Rows of B that lie interleaved, 32 bits a column. The last group of rows is filled up with zeros.
constexpr int64_t Interleave(TileType type) { return 4 / ElementBytes(type); }

// Which element (row, column) of a matrix is whose rows lie `group` by `group`, `ldb` columns each.
constexpr int64_t InterleavedIndex(int64_t group, int64_t ldb, int64_t row, int64_t column) {
  return row / group * ldb * group + column * group + row % group;
}

// A [m, k] row-major, B [k, n] interleaved, C [m, n] row-major of f32 or s32; leading dimensions in
// elements.
struct TileShape {
  TileType type = TileType::kF32;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool accumulate = false;  // C += A B

  auto operator<=>(const TileShape&) const = default;
};

// A compiled tile product. Immutable; Run is thread-safe. Measured with oneDNN 3.7.2 on AVX-512: an
// element of C has the same bits for every m and n, which batch independence rests on (a test holds
// it). Compiling takes 0.04-0.08 ms.
class TileKernel {
 public:
  virtual ~TileKernel() = default;
  virtual void Run(const void* a, const void* b, void* c) const = 0;
};

// The kernel of `path` for `shape`, compiled at the first call in the process and shared from then
// on while anybody holds it. Thread-safe. UNIMPLEMENTED if this machine can't run the path.
absl::StatusOr<std::shared_ptr<const TileKernel>> GetTileKernel(KernelPath path,
                                                                const TileShape& shape);

// Longest k of a kU8S8 kernel: the path over primitives sums in f32, exact up to here.
inline constexpr int64_t kMaxExactDepth = 1024;

// kBrgemm where the microkernel can be made and gives the right numbers, else kPrimitive.
KernelPath BestKernelPath(TileType type = TileType::kF32);
bool KernelPathAvailable(KernelPath path, TileType type = TileType::kF32);

// "AVX512_CORE_BF16", …: what oneDNN runs on; and its version, "3.7.2".
std::string OneDnnIsaName();
std::string OneDnnVersionText();

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_TILE_KERNEL_H_
