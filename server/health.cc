// SPDX-License-Identifier: Apache-2.0
#include "server/health.h"

#include <utility>

namespace headwise {

HealthBoard::HealthBoard(std::function<Health(absl::string_view name)> source)
    : source_(std::move(source)) {}

Health HealthBoard::Now(absl::string_view name) const {
  const Health health = source_(name);
  return draining_ && health == Health::kServing ? Health::kNotServing : health;
}

Health HealthBoard::Check(absl::string_view name) const {
  MutexLock lock(&mu_);
  return Now(name);
}

void HealthBoard::Watch(const std::string& name, Watcher* watcher) {
  MutexLock lock(&mu_);
  const Health health = Now(name);
  watcher->Tell(health, draining_);
  if (!draining_) watchers_[watcher] = {name, health};
}

void HealthBoard::Unwatch(Watcher* watcher) {
  MutexLock lock(&mu_);
  watchers_.erase(watcher);
}

void HealthBoard::Refresh() {
  MutexLock lock(&mu_);
  for (auto& [watcher, watched] : watchers_) {
    const Health health = Now(watched.name);
    if (health == watched.told) continue;
    watched.told = health;
    watcher->Tell(health, /*last=*/false);
  }
}

void HealthBoard::Drain() {
  MutexLock lock(&mu_);
  draining_ = true;
  for (const auto& [watcher, watched] : watchers_) {
    watcher->Tell(Now(watched.name), /*last=*/true);
  }
  watchers_.clear();
}

}  // namespace headwise
