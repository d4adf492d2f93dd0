// SPDX-License-Identifier: Apache-2.0
// exercise: a question on a layer, and what an answer to it is worth.
#include "client/learn/exercise.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "client/verb.h"
#include "nlohmann/json.hpp"

namespace headwise::client {
namespace {

using Json = nlohmann::ordered_json;

std::string ExerciseJson(const Exercise& exercise, bool answers,
                         const std::optional<std::string>& answer,
                         const std::optional<Verdict>& verdict) {
  Json json = {{"kind", exercise.kind},
               {"layer", exercise.layer},
               {"seed", exercise.seed},
               {"question", exercise.question},
               {"answer_form", exercise.answer_form}};
  if (answers) {
    json["expected"] = exercise.Expected();
    json["worked"] = exercise.worked;
  }
  if (verdict.has_value()) {
    json["answer"] = *answer;
    json["right"] = verdict->right;
    json["explanation"] = verdict->explanation;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Title(const Exercise& exercise) {
  return absl::StrCat("Exercise: ", exercise.kind, ", seed ", exercise.seed, "\n\n");
}

// The answer typed at the flag or, once the question is out, on standard input.
std::optional<std::string> TakeAnswer(Session& session, const Exercise& exercise) {
  if (session.args.Has("answer")) return session.args.Text("answer");
  if (session.args.Has("answers") || !session.ask) return std::nullopt;
  std::string question;
  if (!session.json) {
    question =
        absl::StrCat(Title(exercise), exercise.question, "Answer (", exercise.answer_form, "): ");
  }
  std::optional<std::string> answer = session.ask(question);
  if (answer.has_value() && absl::StripAsciiWhitespace(*answer).empty()) return std::nullopt;
  return answer;
}

absl::Status RunExercise(Session& session) {
  const Args& args = session.args;
  if (!args.Has("kind")) return UsageError("--kind is missing");
  CLIENT_ASSIGN_OR_RETURN(const size_t kind, args.Choice("kind", ExerciseKinds(), 0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> seed, args.Uint("seed"));
  CLIENT_ASSIGN_OR_RETURN(
      const Exercise exercise,
      MakeExercise(&session.client, ExerciseKinds()[kind], session.name(), seed.value_or(0)));
  const bool asks = !args.Has("answer") && !args.Has("answers") && session.ask;
  const std::optional<std::string> answer = TakeAnswer(session, exercise);
  std::optional<Verdict> verdict;
  if (answer.has_value()) {
    CLIENT_ASSIGN_OR_RETURN(verdict, JudgeAnswer(exercise, *answer));
    session.exit_code = verdict->right ? kExitDone : kExitNotMet;
  }
  if (session.json) {
    session.out = ExerciseJson(exercise, args.Has("answers"), answer, verdict);
    return absl::OkStatus();
  }
  if (!asks) session.out = absl::StrCat(Title(exercise), exercise.question);
  if (verdict.has_value()) {
    absl::StrAppend(&session.out, "\n", verdict->explanation);
    if (!verdict->right) absl::StrAppend(&session.out, "Worked: ", exercise.worked);
  } else if (args.Has("answers")) {
    absl::StrAppend(&session.out, "\nAnswer: ", exercise.Expected(), "\n", exercise.worked);
  } else {
    absl::StrAppend(&session.out, asks ? "\n" : "",
                    "Answer with --answer, or on standard input; --answers shows the solution.\n");
  }
  return absl::OkStatus();
}

}  // namespace

Verb ExerciseVerb() {
  return {
      .name = "exercise",
      .arguments = "[NAME]",
      .summary = "a question on a layer (without NAME on a small one), and its judge",
      .min_positional = 0,
      .max_positional = 1,
      .flags = {{"kind", "K", "shape, calculation, cost, interpretation, permutation or debugging"},
                {"seed", "N", "which exercise of its kind; 0 by default"},
                {"answer", "TEXT", "the answer, instead of standard input; exit 3 if wrong"},
                {"answers", "", "show the worked solution"}},
      .run = RunExercise};
}

}  // namespace headwise::client
