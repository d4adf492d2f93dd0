// SPDX-License-Identifier: Apache-2.0
#include "client/retry.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

namespace headwise::client {
namespace {

// A payload of the status; nobody reads what it holds.
constexpr absl::string_view kLasting = "headwise.lasting";

bool WorthARetry(const absl::Status& status) {
  return absl::IsUnavailable(status) && !status.GetPayload(kLasting).has_value();
}

}  // namespace

absl::Status Lasting(absl::Status status) {
  status.SetPayload(kLasting, absl::Cord());
  return status;
}

absl::Status Retrier::Run(absl::Duration timeout,
                          const std::function<absl::Status(absl::Duration left)>& attempt) {
  const absl::Time end = absl::Now() + timeout;
  for (int i = 1;; ++i) {
    const absl::Status status = attempt(end - absl::Now());
    if (status.ok()) {
      Earn();
      return status;
    }
    if (i >= options_.max_attempts || !WorthARetry(status)) return status;
    const absl::Duration delay = DelayBefore(i + 1);
    if (absl::Now() + delay >= end || !MayRetry()) return status;
    absl::SleepFor(delay);
  }
}

uint64_t Retrier::retries() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return retries_;
}

bool Retrier::MayRetry() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  ++retries_;
  return true;
}

void Retrier::Earn() {
  const std::lock_guard<std::mutex> lock(mu_);
  tokens_ = std::min(options_.budget, tokens_ + options_.earn);
}

absl::Duration Retrier::DelayBefore(int attempt) {
  absl::Duration delay = options_.first_delay;
  for (int i = 2; i < attempt; ++i) delay = std::min(delay * 2, options_.longest_delay);
  // Half of it fixed, half by chance: clients that failed together don't come back together.
  const std::lock_guard<std::mutex> lock(mu_);
  return delay / 2 + delay / 2 * (static_cast<double>(random_() >> 11) * 0x1p-53);
}

}  // namespace headwise::client
