// SPDX-License-Identifier: Apache-2.0
// The built programs as processes: a server that is stopped by its id, and commands that end.
#ifndef HEADWISE_TESTS_E2E_PROCESS_H_
#define HEADWISE_TESTS_E2E_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace headwise {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// Runs a built program (by name) and waits for it; ends it after a minute.
CommandResult RunProgram(const std::string& program, const std::vector<std::string>& arguments);

// A headwise-server on loopback ports of the system's choice. Ended by the destructor if it still
// runs.
class ServerProcess {
 public:
  // Waits for the first line. `arguments` come after --listen and --metrics; the repository is the
  // tests' data unless they name another.
  explicit ServerProcess(std::vector<std::string> arguments = {});
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }      // 127.0.0.1:PORT
  const std::string& admin_address() const { return admin_; }  // of --admin-listen
  pid_t pid() const { return pid_; }

  // The command line against this server.
  CommandResult Headwise(std::vector<std::string> arguments) const;
  // The same with --json; a failure fails the test and gives null.
  nlohmann::json HeadwiseJson(std::vector<std::string> arguments) const;

  // What /metrics shows, and where (HOST:PORT).
  std::string MetricsText() const;
  const std::string& metrics_address() const { return metrics_; }

  // The value of a metric without labels, or the sum over its labels; 0 if there is none.
  double Metric(const std::string& name) const;
  // Waits until the metric is at least `value`; false after ten seconds.
  bool WaitForMetric(const std::string& name, double value) const;

  void Signal(int signal) const;
  // Exit code after the process has ended; -1 if it has not within `seconds`.
  int WaitForExit(double seconds);

  std::string Log() const;            // what it wrote to stderr so far
  int64_t ResidentBytes() const;      // VmRSS
  int64_t PeakResidentBytes() const;  // VmHWM

 private:
  int64_t StatusBytes(const std::string& key) const;

  TempDir dir_;
  pid_t pid_ = -1;
  bool running_ = false;
  std::string address_;
  std::string metrics_;
  std::string admin_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_E2E_PROCESS_H_
