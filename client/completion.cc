// SPDX-License-Identifier: Apache-2.0
#include "client/completion.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace headwise::client {
namespace {

std::string FlagWords(const std::vector<Flag>& flags) {
  return absl::StrJoin(flags, " ", [](std::string* out, const Flag& flag) {
    absl::StrAppend(out, "--", flag.name);
  });
}

// "a b c" of a value written "a|b|c", where all are words of their own.
std::string Choices(const Flag& flag) {
  const std::vector<std::string> parts = absl::StrSplit(flag.value, '|');
  if (parts.size() < 2) return "";
  for (const std::string& part : parts) {
    if (part.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != part.npos) return "";
  }
  return absl::StrJoin(parts, " ");
}

}  // namespace

std::string BashCompletion(const CommandGrammar& grammar) {
  const std::string function =
      absl::StrCat("_", absl::StrReplaceAll(grammar.program, {{"-", "_"}}));
  std::map<std::string, std::string> choices;  // by flag
  std::string valued;                          // flags whose value is a file or anything else
  std::string verbs, cases;
  const auto collect = [&](const std::vector<Flag>& flags) {
    for (const Flag& flag : flags) {
      if (flag.value.empty()) continue;
      const std::string words = Choices(flag);
      if (!words.empty()) choices[absl::StrCat("--", flag.name)] = words;
      absl::StrAppend(&valued, valued.empty() ? "" : "|", "--", flag.name);
    }
  };
  collect(grammar.flags);
  for (const CommandGrammar::Verb& verb : grammar.verbs) {
    collect(verb.flags);
    absl::StrAppend(&verbs, verbs.empty() ? "" : " ", verb.name);
    absl::StrAppend(&cases, "    ", verb.name, ") flags+=\" ", FlagWords(verb.flags), "\" ;;\n");
  }
  std::string values;
  for (const auto& [flag, words] : choices) {
    absl::StrAppend(&values, "    ", flag, ") COMPREPLY=($(compgen -W \"", words,
                    "\" -- \"$word\")); return ;;\n");
  }
  return absl::StrCat(
      "# bash completion of ", grammar.program, ", as it prints it itself (--completion)\n",
      function, "() {\n",
      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb='' i\n"
      "  local verbs=\"",
      verbs, "\" flags=\"", FlagWords(grammar.flags), "\"\n",
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    [[ \" $verbs \" == *\" ${COMP_WORDS[i]} \"* ]] && verb=${COMP_WORDS[i]} && break\n"
      "  done\n"
      "  case $previous in\n",
      values, "    ", valued,
      ") COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
      "  esac\n"
      "  case $verb in\n",
      cases, "    *) ;;\n  esac\n",
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
      "  elif [[ -n $verbs && -z $verb ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$verbs\" -- \"$word\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "  fi\n"
      "}\n"
      "complete -F ",
      function, " ", grammar.program, "\n");
}

}  // namespace headwise::client
