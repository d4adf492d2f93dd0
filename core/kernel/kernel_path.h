// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_KERNEL_KERNEL_PATH_H_
#define HEADWISE_CORE_KERNEL_KERNEL_PATH_H_

#include <cstdint>

namespace headwise {

// Which implementation of the tile product runs. Chosen once, when the engine is made.
enum class KernelPath : uint8_t {
  kAuto,       // the best that this machine can run
  kBrgemm,     // oneDNN's BRGeMM microkernel
  kPrimitive,  // oneDNN's matmul primitive, tile by tile: anywhere, the same contract
};

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_KERNEL_PATH_H_
