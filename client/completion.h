// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_COMPLETION_H_
#define HEADWISE_CLIENT_COMPLETION_H_

#include <string>
#include <vector>

#include "client/flags.h"

namespace headwise::client {

// What a program takes, for its completion.
struct CommandGrammar {
  struct Verb {
    std::string name;
    std::vector<Flag> flags;
  };
  std::string program;
  std::vector<Flag> flags;  // without a verb, and with any
  std::vector<Verb> verbs;  // may be empty
};

// A script for bash (and for zsh after bashcompinit): verbs, their flags, the choices of a flag's
// value, and files anywhere else.
std::string BashCompletion(const CommandGrammar& grammar);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_COMPLETION_H_
