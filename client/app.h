// SPDX-License-Identifier: Apache-2.0
// The program `headwise`, free of main: arguments in, text and exit code out.
#ifndef HEADWISE_CLIENT_APP_H_
#define HEADWISE_CLIENT_APP_H_

#include <functional>
#include <istream>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/report.h"

namespace headwise::client {

// What surrounds a run. `connect` makes the client that the verb talks to.
struct Environment {
  Terminal terminal;           // of standard output
  bool watched = false;        // standard error is a terminal: show progress there
  std::istream* in = nullptr;  // standard input, for verbs that ask; null: none
  std::function<absl::StatusOr<std::unique_ptr<Client>>(const std::string& target,
                                                        const ClientOptions& options)>
      connect = Client::Connect;
};

// Runs one command line (without the program's name) and returns the exit code. On failure `out`
// gets nothing (but a question that was asked before) and `err` one line.
int RunHeadwise(absl::Span<const std::string> words, const Environment& environment,
                std::ostream& out, std::ostream& err);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_APP_H_
