// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_FREE_MEMORY_H_
#define HEADWISE_SERVER_FREE_MEMORY_H_

namespace headwise {

// Holds what tcmalloc keeps for each thread to a few megabytes in all: gRPC's threads come and go,
// and what idle ones keep is never given back. Once, at the start.
void LimitThreadCaches();

// Gives memory that the allocator has free back to the system, where the allocator is tcmalloc; it
// would itself, but slowly. Takes some milliseconds: for after something large has gone.
void ReleaseFreeMemory();

}  // namespace headwise

#endif  // HEADWISE_SERVER_FREE_MEMORY_H_
