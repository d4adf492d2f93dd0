// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_STARTUP_H_
#define HEADWISE_SERVER_STARTUP_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace headwise {

// Which of the layers given at start-up are still to come. Thread-safe.
class Startup {
 public:
  void Expect(const std::vector<std::string>& names);
  void Arrived(const std::string& name);
  void Done();  // nothing more is loaded at start-up

  bool done() const;
  std::vector<std::string> PendingNames() const;
  bool Pending(absl::string_view name) const;
  // UNAVAILABLE while `name` is pending.
  absl::Status Check(absl::string_view name) const;

 private:
  mutable Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::string, std::less<>> pending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_STARTUP_H_
