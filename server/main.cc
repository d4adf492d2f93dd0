// SPDX-License-Identifier: Apache-2.0
#include <grpc/support/log.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "headwise/version.h"
#include "server/flags.h"
#include "server/free_memory.h"
#include "server/logging.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/signals.h"

namespace headwise {
namespace {

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "headwise-server: %s: %s\n", CodeName(status.code()),
               std::string(status.message()).c_str());
  return exit_code;
}

void StartLogging(LogLevel level) {
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfo);
  absl::InitializeLog();
  SetLogLevel(level);
  // gRPC logs what every internet-facing port sees as errors; what matters comes back as a status.
  gpr_set_log_function([](gpr_log_func_args* args) { VLOG(1) << "gRPC: " << args->message; });
}

// Leaves without tearing down: nothing is left to save, and the HTTP server would take up to 2 s.
[[noreturn]] void Quit(int exit_code) {
  std::fflush(nullptr);
  _exit(exit_code);
}

int Serve(const ServerOptions& options) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(MakeEngineOptions(options));
  if (!engine.ok()) return Fail(engine.status(), 1);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, engine->get());
  if (!server.ok()) return Fail(server.status(), 1);
  const SignalThread signals({.stop =
                                  [&server](int count) {
                                    if (count == 1) (*server)->BeginDrain();
                                    if (count == 2) (*server)->Hurry();
                                    if (count > 2) _exit(1);
                                  },
                              .log_level = StepLogLevel});
  std::printf("%s\n", (*server)->Banner().c_str());
  std::fflush(stdout);
  if (absl::Status status = (*server)->LoadStartupLayers(); !status.ok()) Quit(Fail(status, 1));
  (*server)->Wait();
  Quit(0);
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<ServerOptions> options = ParseFlags(arguments);
  if (!options.ok()) return Fail(options.status(), 2);
  if (options->help) return std::fputs(FlagsHelp().c_str(), stdout) < 0 ? 1 : 0;
  if (options->version) return std::printf("headwise-server %s\n", kVersion) < 0 ? 1 : 0;
  StartLogging(options->log_level);
  try {
    return Serve(*options);
  } catch (const std::system_error& error) {
    return Fail(absl::ResourceExhaustedError(absl::StrCat(
                    "threads: must be allowed by the system; was ", error.code().message())),
                1);
  }
}

}  // namespace
}  // namespace headwise

int main(int argc, char** argv) {
  headwise::LimitThreadCaches();
  headwise::BlockSignals();
  return headwise::Main(std::vector<std::string>(argv + 1, argv + argc));
}
