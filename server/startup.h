// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_STARTUP_H_
#define HEADWISE_SERVER_STARTUP_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace headwise {

// Which of the layers given at start-up are still to come, and which failed. Thread-safe.
class Startup {
 public:
  void Expect(const std::vector<std::string>& names);
  // Loaded at start-up, or later by a call in place of one that failed.
  void Arrived(const std::string& name);
  void Failed(const std::string& name, const absl::Status& why);
  void Done();  // nothing more is loaded at start-up

  // All that was given is there.
  bool ready() const;
  std::vector<std::string> PendingNames() const;
  std::vector<std::string> FailedNames() const;
  // Neither there nor unknown.
  bool Missing(absl::string_view name) const;
  // UNAVAILABLE while `name` is pending, or if it failed.
  absl::Status Check(absl::string_view name) const;

 private:
  mutable Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::string, std::less<>> pending_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, absl::Status, std::less<>> failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_STARTUP_H_
