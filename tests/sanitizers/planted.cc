// SPDX-License-Identifier: Apache-2.0
// A fault on purpose, so that a sanitizer build shows that it would find one. Linked with a
// target's library and run by ctest, which expects the report.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "core/base/worker_pool.h"

namespace {

// Two workers of a pool write one variable without a lock. Each waits until the other is there, by
// relaxed atomics, which order nothing.
int Race() {
  long shared = 0;
  std::atomic<int> there{0};
  headwise::WorkerPool pool(2);
  pool.Run(2, [&](int64_t task, int) {
    there.fetch_add(1, std::memory_order_relaxed);
    while (there.load(std::memory_order_relaxed) < 2) std::this_thread::yield();
    shared += task + 1;
  });
  return shared == 0 ? 1 : 0;
}

// Two threads write one string without a lock.
int StringRace() {
  std::string shared;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) shared = "other";
  });
  for (int i = 0; i < 1000; ++i) shared = "this";
  other.join();
  return shared.empty() ? 1 : 0;
}

int Overflow() {
  char* const bytes = new char[16];
  std::memset(bytes, 1, 16);
  char* volatile hidden = bytes;  // so that the fault is met when it runs, not when it is compiled
  const int read = hidden[16];    // one beyond the end
  delete[] bytes;
  return read == 77 ? 1 : 0;
}

int Undefined() {
  volatile int largest = 2147483647;
  std::printf("%d\n", largest + 1);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = argc == 2 ? argv[1] : "";
  if (fault == "race") return Race();
  if (fault == "string-race") return StringRace();
  if (fault == "overflow") return Overflow();
  if (fault == "undefined") return Undefined();
  std::fprintf(stderr, "usage: planted race|string-race|overflow|undefined\n");
  return 2;
}
