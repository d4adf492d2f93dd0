// SPDX-License-Identifier: Apache-2.0
#include "server/startup.h"

#include "absl/strings/str_cat.h"

namespace headwise {

void Startup::Expect(const std::vector<std::string>& names) {
  MutexLock lock(&mu_);
  pending_.insert(names.begin(), names.end());
}

void Startup::Arrived(const std::string& name) {
  MutexLock lock(&mu_);
  pending_.erase(name);
}

void Startup::Done() {
  MutexLock lock(&mu_);
  pending_.clear();
  done_ = true;
}

bool Startup::done() const {
  MutexLock lock(&mu_);
  return done_;
}

std::vector<std::string> Startup::PendingNames() const {
  MutexLock lock(&mu_);
  return {pending_.begin(), pending_.end()};
}

bool Startup::Pending(absl::string_view name) const {
  MutexLock lock(&mu_);
  return pending_.contains(name);
}

absl::Status Startup::Check(absl::string_view name) const {
  if (!Pending(name)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("layer: is given at start-up and still loading; was ", name));
}

}  // namespace headwise
