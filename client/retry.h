// SPDX-License-Identifier: Apache-2.0
// Retries of calls that may be sent twice: a replica that went away must not cost an answer, and
// retries must not finish off servers that are overloaded.
#ifndef HEADWISE_CLIENT_RETRY_H_
#define HEADWISE_CLIENT_RETRY_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <random>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace headwise::client {

struct RetryOptions {
  int max_attempts = 4;  // the first one included; 1: no retries
  absl::Duration first_delay = absl::Milliseconds(20);
  absl::Duration longest_delay = absl::Seconds(1);
  // A retry takes one token, an answer gives `earn` back: in the long run at most one call in ten
  // is a retry, whatever the servers do.
  double budget = 20;
  double earn = 0.1;
};

// The same error, marked as one that the next attempt would meet again.
absl::Status Lasting(absl::Status status);

// One budget for all calls of a client. Thread-safe.
class Retrier {
 public:
  explicit Retrier(const RetryOptions& options) : options_(options), tokens_(options.budget) {}

  // Calls `attempt` until it succeeds or its error isn't worth a retry. UNAVAILABLE is (the
  // connection broke, or the server drains), unless it is Lasting; a refusal by a server that is
  // full isn't: whether to come again is the caller's to decide. Waits in between, longer each time
  // and with jitter. Gives up `timeout` after it began; `attempt` is told how much is left.
  absl::Status Run(absl::Duration timeout,
                   const std::function<absl::Status(absl::Duration left)>& attempt);

  uint64_t retries() const;

 private:
  // Takes a token.
  bool MayRetry();
  void Earn();
  absl::Duration DelayBefore(int attempt);

  const RetryOptions options_;
  mutable std::mutex mu_;
  double tokens_;
  uint64_t retries_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_RETRY_H_
