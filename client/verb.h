// SPDX-License-Identifier: Apache-2.0
// What a verb of `headwise` is: its grammar, and a function over one session.
#ifndef HEADWISE_CLIENT_VERB_H_
#define HEADWISE_CLIENT_VERB_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "client/flags.h"
#include "client/report.h"

namespace headwise::client {

// One run of one verb. Not thread-safe.
struct Session {
  const Args& args;
  Client& client;
  bool json = false;  // one object for machines, instead of tables
  Terminal terminal;
  ProgressCallback progress;  // empty where nobody watches
  // Says something at once, before the verb has ended, and reads a line of what the user answers;
  // nullopt at the end of standard input. Empty where there is none.
  std::function<std::optional<std::string>(const std::string& question)> ask;
  std::string out;    // what the verb says; printed only if it succeeds
  int exit_code = 0;  // of a verb that succeeds but has bad news

  // The verb's first positional argument, or empty.
  std::string name() const {
    return args.positional().empty() ? std::string() : args.positional()[0];
  }
};

struct Verb {
  absl::string_view name;
  absl::string_view arguments;  // for the help text: "NAME"
  absl::string_view summary;
  size_t min_positional = 0;
  size_t max_positional = 0;
  std::vector<Flag> flags;  // besides the global ones
  absl::Status (*run)(Session& session) = nullptr;
};

// In the order of the help text.
const std::vector<Verb>& Verbs();

// The verbs, one function a file of verbs/.
std::vector<Verb> LoadVerbs();    // load, unload
std::vector<Verb> LayerVerbs();   // list, show, repository
std::vector<Verb> ServerVerbs();  // health, info
Verb CountVerb();
Verb ForwardVerb();
Verb TraceVerb();
Verb ExerciseVerb();
Verb AblateVerb();
Verb AnalyzeVerb();
Verb AuditVerb();
std::vector<Verb> DeriveVerbs();  // prune, permute, split, combine, quantize
Verb SaveVerb();

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_VERB_H_
