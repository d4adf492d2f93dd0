// SPDX-License-Identifier: Apache-2.0
#include "client/app.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/completion.h"
#include "client/flags.h"
#include "client/status.h"
#include "client/verb.h"
#include "headwise/version.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kProgram = "headwise";
constexpr absl::string_view kClearLine = "\r\033[K";  // wipes what progress has written

const std::vector<Flag>& GlobalFlags() {
  static const auto* flags = [] {
    auto* list = new std::vector<Flag>{
        {"server", "HOST:PORT", "the server; 127.0.0.1:8500 by default"},
        {"timeout", "30s", "longest wait for a call"},
        {"client-id", "NAME", "whose share of the server the calls use; this machine's by default"},
        {"json", "", "one JSON object instead of tables"},
        {"help", "", "this text"},
    };
    list->insert(list->end(), SecurityFlags().begin(), SecurityFlags().end());
    return list;
  }();
  return *flags;
}

// Of the program without a verb.
const std::vector<Flag>& ProgramFlags() {
  static const auto* flags = [] {
    auto* list = new std::vector<Flag>(GlobalFlags());
    list->insert(list->end(), {{"version", "", "the version of this program"},
                               {"completion", "", "a completion script for bash"},
                               {"reference", "", "every help text, as Markdown"}});
    return list;
  }();
  return *flags;
}

std::string OverallHelp() {
  std::string text =
      "headwise: talks to a Headwise server, which keeps attention layers in memory.\n\n"
      "usage: headwise [--server HOST:PORT] [--timeout 30s] [--json] VERB …\n\nverbs:\n";
  for (const Verb& verb : Verbs()) {
    absl::StrAppend(&text,
                    absl::StrFormat("  %-11s %-7s %s\n", verb.name, verb.arguments, verb.summary));
  }
  absl::StrAppend(
      &text, "\nflags of every verb:\n", DescribeFlags(GlobalFlags()), "\nflags without a verb:\n",
      DescribeFlags(absl::MakeConstSpan(ProgramFlags()).subspan(GlobalFlags().size())),
      "\n`headwise VERB --help` describes a verb. Tensor files are .npy or .safetensors "
      "(FILE:NAME picks a tensor).\n"
      "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 threshold not met or answer "
      "wrong.\n");
  return text;
}

std::string VerbHelp(const Verb& verb) {
  std::string text =
      absl::StrCat("usage: headwise ", verb.name, verb.arguments.empty() ? "" : " ", verb.arguments,
                   verb.flags.empty() ? "" : " [flags]", "\n\n", verb.summary, "\n");
  if (!verb.flags.empty()) absl::StrAppend(&text, "\nflags:\n", DescribeFlags(verb.flags));
  absl::StrAppend(&text, "\nflags of every verb:\n", DescribeFlags(GlobalFlags()));
  return text;
}

std::string Reference() {
  std::string text = MarkdownSection("headwise", OverallHelp());
  for (const Verb& verb : Verbs()) {
    absl::StrAppend(&text, MarkdownSection(absl::StrCat("headwise ", verb.name), VerbHelp(verb)));
  }
  return text;
}

std::string Completion() {
  CommandGrammar grammar{.program = "headwise", .flags = ProgramFlags(), .verbs = {}};
  for (const Verb& verb : Verbs()) grammar.verbs.push_back({std::string(verb.name), verb.flags});
  return BashCompletion(grammar);
}

// What a command line without a verb asks for.
std::string AboutProgram(const Args& args) {
  if (args.Has("version")) return absl::StrCat(kProgram, " ", kVersion, "\n");
  if (args.Has("completion")) return Completion();
  if (args.Has("reference")) return Reference();
  return OverallHelp();
}

// The place of the verb: the first word that is no flag and no flag's value. A flag before the verb
// is looked up among those of all verbs, since which verb it belongs to isn't known yet.
size_t FindVerbWord(absl::Span<const std::string> words) {
  const auto takes_value = [](absl::string_view name) {
    const auto has = [name](const std::vector<Flag>& flags) {
      return std::any_of(flags.begin(), flags.end(), [name](const Flag& flag) {
        return flag.name == name && !flag.value.empty();
      });
    };
    return has(GlobalFlags()) || std::any_of(Verbs().begin(), Verbs().end(),
                                             [&](const Verb& verb) { return has(verb.flags); });
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const absl::string_view word = words[i];
    if (!absl::StartsWith(word, "--")) return i;
    if (word.find('=') == word.npos && takes_value(word.substr(2))) ++i;
  }
  return words.size();
}

struct Command {
  const Verb* verb = nullptr;  // null: the overall help is wanted
  Args args;
};

absl::StatusOr<Command> ParseCommand(absl::Span<const std::string> words) {
  const size_t at = FindVerbWord(words);
  if (at == words.size()) {
    CLIENT_ASSIGN_OR_RETURN(Args args, Args::Parse(words, ProgramFlags()));
    for (const char* flag : {"help", "version", "completion", "reference"}) {
      if (args.Has(flag)) return Command{nullptr, std::move(args)};
    }
    return UsageError("a verb is missing (see headwise --help)");
  }
  const std::string& name = words[at];
  const auto verb = std::find_if(Verbs().begin(), Verbs().end(),
                                 [&](const Verb& candidate) { return candidate.name == name; });
  if (verb == Verbs().end()) {
    if (name == "help") return Command{};
    return UsageError(absl::StrCat("unknown verb ", name, " (see headwise --help)"));
  }
  std::vector<std::string> rest(words.begin(), words.end());
  rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(at));
  std::vector<Flag> flags = GlobalFlags();
  flags.insert(flags.end(), verb->flags.begin(), verb->flags.end());
  const std::string hint = absl::StrCat(" (see headwise ", name, " --help)");
  absl::StatusOr<Args> args = Args::Parse(rest, flags);
  if (!args.ok()) return UsageError(absl::StrCat(args.status().message(), hint));
  const size_t given = args->positional().size();
  if (!args->Has("help") && given < verb->min_positional) {
    return UsageError(absl::StrCat(name, ": ", verb->arguments, " is missing", hint));
  }
  if (given > verb->max_positional) {
    return UsageError(absl::StrCat(name, ": unexpected argument \"",
                                   args->positional()[verb->max_positional], "\"", hint));
  }
  return Command{&*verb, *std::move(args)};
}

ProgressCallback ProgressOn(std::ostream& err) {
  return [&err](const std::string& stage, int64_t done, int64_t total) {
    err << kClearLine
        << absl::StrFormat("%s %d %%", CleanText(stage), total > 0 ? 100 * done / total : 100);
    err << (done >= total ? kClearLine : "") << std::flush;
  };
}

absl::Status RunVerb(const Command& command, const Environment& environment, std::ostream& out,
                     std::ostream& err, int* exit_code) {
  ClientOptions options;
  CLIENT_ASSIGN_OR_RETURN(options.timeout, command.args.Time("timeout", options.timeout));
  CLIENT_ASSIGN_OR_RETURN(options.client_id, command.args.ClientId("client-id"));
  CLIENT_ASSIGN_OR_RETURN(options.security, ReadSecurity(command.args));
  CLIENT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Client> client,
      environment.connect(command.args.Text("server", "127.0.0.1:8500"), options));
  Session session{.args = command.args,
                  .client = *client,
                  .json = command.args.Has("json"),
                  .terminal = environment.terminal,
                  .progress = environment.watched ? ProgressOn(err) : ProgressCallback(),
                  .ask = {},
                  .out = {},
                  .exit_code = kExitDone};
  if (environment.in != nullptr) {
    session.ask = [&](const std::string& question) -> std::optional<std::string> {
      out << question << std::flush;
      std::string line;
      if (!std::getline(*environment.in, line)) return std::nullopt;
      return line;
    };
  }
  const absl::Status status = command.verb->run(session);
  if (IsUsageError(status)) {
    return UsageError(absl::StrCat(command.verb->name, ": ", status.message(), " (see headwise ",
                                   command.verb->name, " --help)"));
  }
  CLIENT_RETURN_IF_ERROR(status);
  out << session.out << std::flush;
  if (!out) return absl::DataLossError("output: must be writable; was not");
  *exit_code = session.exit_code;
  return absl::OkStatus();
}

}  // namespace

const std::vector<Verb>& Verbs() {
  static const auto* verbs = [] {
    auto* list = new std::vector<Verb>;
    const auto append = [list](std::vector<Verb> more) {
      for (Verb& verb : more) list->push_back(std::move(verb));
    };
    append(LoadVerbs());
    append(LayerVerbs());
    append({SaveVerb(), CountVerb(), ForwardVerb(), TraceVerb(), ExerciseVerb(), AblateVerb(),
            AnalyzeVerb(), AuditVerb()});
    append(ServerVerbs());
    append(DeriveVerbs());
    return list;
  }();
  return *verbs;
}

int RunHeadwise(absl::Span<const std::string> words, const Environment& environment,
                std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Command> command = ParseCommand(words);
  if (!command.ok()) {
    err << ErrorLine(kProgram, command.status()) << "\n";
    return ExitCodeOf(command.status());
  }
  if (command->verb == nullptr || command->args.Has("help")) {
    out << (command->verb == nullptr ? AboutProgram(command->args) : VerbHelp(*command->verb));
    return kExitDone;
  }
  int exit_code = kExitDone;
  const absl::Status status = RunVerb(*command, environment, out, err, &exit_code);
  if (status.ok()) return exit_code;
  if (environment.watched) err << kClearLine;
  err << ErrorLine(kProgram, status) << "\n";
  return ExitCodeOf(status);
}

}  // namespace headwise::client
