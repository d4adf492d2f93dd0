// SPDX-License-Identifier: Apache-2.0
#include "server/free_memory.h"

#include <cstddef>

// gperftools' C interface. Weak: the sanitizers' builds have another allocator.
extern "C" {
__attribute__((weak)) void MallocExtension_ReleaseFreeMemory(void);
__attribute__((weak)) int MallocExtension_SetNumericProperty(const char* property, size_t value);
}

namespace headwise {

void LimitThreadCaches() {
  // 32 MiB is tcmalloc's own limit. Large blocks, of which messages and outputs are, pass them by.
  constexpr size_t kBytes = 4 << 20;
  if (MallocExtension_SetNumericProperty == nullptr) return;
  MallocExtension_SetNumericProperty("tcmalloc.max_total_thread_cache_bytes", kBytes);
}

void ReleaseFreeMemory() {
  if (MallocExtension_ReleaseFreeMemory != nullptr) MallocExtension_ReleaseFreeMemory();
}

}  // namespace headwise
