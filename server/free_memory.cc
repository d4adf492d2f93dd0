// SPDX-License-Identifier: Apache-2.0
#include "server/free_memory.h"

// gperftools' C interface. Weak: the sanitizers' builds have another allocator.
extern "C" __attribute__((weak)) void MallocExtension_ReleaseFreeMemory(void);

namespace headwise {

void ReleaseFreeMemory() {
  if (MallocExtension_ReleaseFreeMemory != nullptr) MallocExtension_ReleaseFreeMemory();
}

}  // namespace headwise
