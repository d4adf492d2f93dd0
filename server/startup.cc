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
  failed_.erase(name);
}

void Startup::Failed(const std::string& name, const absl::Status& why) {
  MutexLock lock(&mu_);
  pending_.erase(name);
  failed_[name] = why;
}

void Startup::Done() {
  MutexLock lock(&mu_);
  pending_.clear();
  done_ = true;
}

bool Startup::ready() const {
  MutexLock lock(&mu_);
  return done_ && failed_.empty();
}

std::vector<std::string> Startup::PendingNames() const {
  MutexLock lock(&mu_);
  return {pending_.begin(), pending_.end()};
}

std::vector<std::string> Startup::FailedNames() const {
  MutexLock lock(&mu_);
  std::vector<std::string> names;
  for (const auto& [name, why] : failed_) names.push_back(name);
  return names;
}

bool Startup::Missing(absl::string_view name) const {
  MutexLock lock(&mu_);
  return pending_.contains(name) || failed_.contains(name);
}

absl::Status Startup::Check(absl::string_view name) const {
  MutexLock lock(&mu_);
  if (pending_.contains(name)) {
    return absl::UnavailableError(
        absl::StrCat("layer: is given at start-up and still loading; was ", name));
  }
  const auto failed = failed_.find(name);
  if (failed == failed_.end()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("layer: is given at start-up and failed to load (",
                                             failed->second.message(), "); was ", name));
}

}  // namespace headwise
