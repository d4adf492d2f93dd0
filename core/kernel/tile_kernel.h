// SPDX-License-Identifier: Apache-2.0
// The one product that everything is made of: a small f32 tile C = A B or C += A B, by oneDNN.
#ifndef HEADWISE_CORE_KERNEL_TILE_KERNEL_H_
#define HEADWISE_CORE_KERNEL_TILE_KERNEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/kernel/kernel_path.h"

namespace headwise {

// A [m, k], B [k, n], C [m, n], row-major with leading dimensions in elements.
struct TileShape {
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
  virtual void Run(const float* a, const float* b, float* c) const = 0;
};

// The kernel of `path` for `shape`, compiled at the first call in the process and shared from then
// on while anybody holds it. Thread-safe. UNIMPLEMENTED if this machine can't run the path.
absl::StatusOr<std::shared_ptr<const TileKernel>> GetTileKernel(KernelPath path,
                                                                const TileShape& shape);

// kBrgemm where the microkernel can be made, else kPrimitive.
KernelPath BestKernelPath();
bool KernelPathAvailable(KernelPath path);

// "AVX512_CORE_BF16", …: what oneDNN runs on; and its version, "3.7.2".
std::string OneDnnIsaName();
std::string OneDnnVersionText();

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_TILE_KERNEL_H_
