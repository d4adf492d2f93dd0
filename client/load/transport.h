// SPDX-License-Identifier: Apache-2.0
// What a load test needs of the world: a clock, a way to start calls, a way to hear of their end.
#ifndef HEADWISE_CLIENT_LOAD_TRANSPORT_H_
#define HEADWISE_CLIENT_LOAD_TRANSPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace headwise::client {

enum class Method { kForward, kAblate };

struct Call {
  uint64_t id = 0;
  Method method = Method::kForward;
  size_t layer = 0;     // which of the run's
  uint32_t tokens = 0;  // T of its one sequence
};

struct Completion {
  uint64_t id = 0;
  int64_t done_ns = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;                // of a failure, where the server gave one
  std::optional<uint32_t> queue_us;  // the server's own figures, where it gave them
  std::optional<uint32_t> compute_us;
};

// CPU seconds so far.
struct CpuSeconds {
  double busiest_thread = 0;  // of the threads that send and receive
  double process = 0;         // the generator as a whole
};

// Calls in flight. Used from one thread; times are ns since the transport's own start.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int64_t NowNs() = 0;

  // Sends the call and returns at once, whatever the server does.
  virtual void Start(const Call& call) = 0;

  // The next call that has ended, or nullopt once the time is `until_ns`.
  virtual std::optional<Completion> Wait(int64_t until_ns) = 0;

  virtual CpuSeconds CpuSoFar() = 0;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_TRANSPORT_H_
