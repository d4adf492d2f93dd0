// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_HEALTH_H_
#define HEADWISE_SERVER_HEALTH_H_

#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace headwise {

enum class Health { kUnknownName, kServing, kNotServing };

// What the health service says of "" (the server) and "layer/NAME", and who wants to be told when
// it changes. The truth is asked of its owner each time, so it can't go stale here. Thread-safe.
class HealthBoard {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    // The first call tells the present state, later ones a change. `last`: no more will come.
    // Called under the board's lock: must not block or call back.
    virtual void Tell(Health health, bool last) = 0;
  };

  // `source` is called under the board's lock; "" never gives kUnknownName.
  explicit HealthBoard(std::function<Health(absl::string_view name)> source);

  Health Check(absl::string_view name) const;

  // Tells the watcher at once, and again at each change until Unwatch or Drain.
  void Watch(const std::string& name, Watcher* watcher);
  void Unwatch(Watcher* watcher);

  // Something may have changed: tells those who watch a name of another state than they were told.
  void Refresh();

  // From now on known names are kNotServing; all watchers are told, for the last time.
  void Drain();

 private:
  struct Watched {
    std::string name;
    Health told = Health::kUnknownName;
  };
  Health Now(absl::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<Health(absl::string_view)> source_;
  mutable Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<Watcher*, Watched> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HEALTH_H_
