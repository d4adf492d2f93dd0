// SPDX-License-Identifier: Apache-2.0
// The program `headwise-load`, free of main.
#ifndef HEADWISE_CLIENT_LOAD_LOAD_APP_H_
#define HEADWISE_CLIENT_LOAD_LOAD_APP_H_

#include <memory>
#include <ostream>
#include <string>

#include "absl/types/span.h"
#include "client/load/arrivals.h"
#include "client/load/options.h"
#include "client/load/runner.h"
#include "client/report.h"

namespace headwise::client {

// What the options ask of a run: its schedule, its sums, its runner's settings (progress and
// giving up aside).
std::unique_ptr<Arrivals> MakeArrivals(const LoadOptions& options);
RunRecord MakeRecord(const LoadOptions& options);
Runner::Settings RunnerSettings(const LoadOptions& options);

std::string LoadHelp();

// Runs one command line (without the program's name) and returns the exit code: 1 also if no call
// succeeded or the generator was the limit, 3 where a bound wasn't kept. `watched`: `err` is a
// terminal, where a live line is shown.
int RunHeadwiseLoad(absl::Span<const std::string> words, const Terminal& terminal, bool watched,
                    std::ostream& out, std::ostream& err);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_LOAD_APP_H_
