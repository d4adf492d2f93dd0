// SPDX-License-Identifier: Apache-2.0
// What an answer is worth.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/learn/exercise.h"
#include "client/learn/trace.h"
#include "client/report.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr size_t kMaxAnswerBytes = 4096;

std::string Plain(double number) {
  return number == std::floor(number) && std::fabs(number) < 1e15
             ? absl::StrCat(static_cast<int64_t>(number))
             : ShortNumber(number);
}

std::string PlainList(const std::vector<double>& numbers) {
  std::vector<std::string> texts;
  for (const double number : numbers) texts.push_back(Plain(number));
  return absl::StrJoin(texts, ",");
}

char Letter(size_t choice) { return static_cast<char>('a' + choice); }

bool Near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const double size = std::max(1.0, std::max(std::fabs(a[i]), std::fabs(b[i])));
    if (!(std::fabs(a[i] - b[i]) <= tolerance * size)) return false;
  }
  return true;
}

absl::Status WrongForm(const Exercise& exercise, absl::string_view answer) {
  return absl::InvalidArgumentError(absl::StrCat(
      "answer: must be ", exercise.answer_form, "; was \"", CleanText(answer.substr(0, 60)), "\""));
}

// "2,8,10,10", "(2, 8, 10, 10)", "[2 8 10 10]", "2x8x10x10"; "1,600" only where one number is
// asked for.
absl::StatusOr<std::vector<double>> ReadNumbers(const Exercise& exercise,
                                                absl::string_view answer) {
  std::string text(answer);
  for (char& c : text) {
    if (c == '(' || c == ')' || c == '[' || c == ']' || c == 'x' || c == ';') c = ' ';
    if (c == ',' && exercise.numbers.size() > 1) c = ' ';
  }
  if (exercise.numbers.size() == 1)
    text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  std::vector<double> numbers;
  for (absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
    double number = 0.0;
    if (!absl::SimpleAtod(part, &number) || !std::isfinite(number)) {
      return WrongForm(exercise, answer);
    }
    numbers.push_back(number);
  }
  if (numbers.size() != exercise.numbers.size()) return WrongForm(exercise, answer);
  return numbers;
}

Verdict JudgeNumbers(const Exercise& exercise, const std::vector<double>& numbers) {
  const std::string right = PlainList(exercise.numbers);
  if (Near(numbers, exercise.numbers, exercise.tolerance)) {
    return {true, absl::StrCat("Right: ", right, ".\n")};
  }
  std::string text = absl::StrCat("Not right: it is ", right, ".\n");
  for (const WrongNumbers& wrong : exercise.wrong) {
    if (Near(wrong.numbers, exercise.numbers, exercise.tolerance)) continue;
    if (!Near(numbers, wrong.numbers, exercise.tolerance)) continue;
    absl::StrAppend(&text, "Your answer is what one gets so: ", wrong.text, ".\n");
    return {false, text};
  }
  std::vector<std::string> places;
  for (size_t i = 0; i < numbers.size() && numbers.size() > 1; ++i) {
    if (Near({numbers[i]}, {exercise.numbers[i]}, exercise.tolerance)) continue;
    places.push_back(absl::StrCat("number ", i + 1, " is ", Plain(exercise.numbers[i]), ", not ",
                                  Plain(numbers[i])));
  }
  if (numbers.size() == 1) {
    places.push_back(absl::StrCat(
        "it is off by ", Plain(numbers[0] - exercise.numbers[0]),
        exercise.numbers[0] == 0.0
            ? ""
            : absl::StrFormat(", a factor of %.4g", numbers[0] / exercise.numbers[0])));
  }
  absl::StrAppend(&text, "Where it differs: ", absl::StrJoin(places, "; "), ".\n");
  return {false, text};
}

// "a,c" or "ac".
absl::StatusOr<std::set<size_t>> ReadLetters(const Exercise& exercise, absl::string_view answer) {
  std::set<size_t> letters;
  for (const char c : answer) {
    if (c == ',' || c == ' ') continue;
    const size_t choice = static_cast<size_t>(absl::ascii_tolower(static_cast<unsigned char>(c))) -
                          static_cast<size_t>('a');
    if (choice >= exercise.choices.size()) return WrongForm(exercise, answer);
    letters.insert(choice);
  }
  if (letters.empty()) return WrongForm(exercise, answer);
  return letters;
}

Verdict JudgeLetters(const Exercise& exercise, const std::set<size_t>& letters) {
  Verdict verdict{true, ""};
  for (size_t i = 0; i < exercise.choices.size(); ++i) {
    const Choice& choice = exercise.choices[i];
    if (choice.right == letters.contains(i)) continue;
    verdict.right = false;
    absl::StrAppend(&verdict.explanation, "  ", std::string(1, Letter(i)), ": ", choice.why, "\n");
  }
  verdict.explanation = absl::StrCat(verdict.right ? "Right: " : "Not right: it is ",
                                     exercise.Expected(), ".\n", verdict.explanation);
  return verdict;
}

// Words that a claim about effects at y may be made of.
bool Measurable(const std::string& word) {
  static const auto* words = new std::set<std::string>{
      "head",   "heads",    "removing", "zeroing", "ablating", "changes", "changed",   "change",
      "moves",  "moved",    "y",        "more",    "less",     "than",    "does",      "did",
      "by",     "relative", "l2",       "on",      "in",       "these",   "sequences", "here",
      "input",  "inputs",   "this",     "the",     "of",       "at",      "output",    "layer",
      "effect", "effects",  "is",       "has",     "a",        "an",      "larger",    "smaller",
      "=",      ">",        "<",        "layer's", "measured", "was",     "about",     "and"};
  return words->contains(word);
}

}  // namespace

std::string Exercise::Expected() const {
  if (choices.empty()) return PlainList(numbers);
  std::vector<std::string> letters;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].right) letters.push_back(std::string(1, Letter(i)));
  }
  return absl::StrJoin(letters, ",");
}

absl::StatusOr<Verdict> JudgeAnswer(const Exercise& exercise, absl::string_view answer) {
  answer = absl::StripAsciiWhitespace(answer);
  if (answer.empty() || answer.size() > kMaxAnswerBytes) return WrongForm(exercise, answer);
  if (exercise.choices.empty()) {
    CLIENT_ASSIGN_OR_RETURN(const std::vector<double> numbers, ReadNumbers(exercise, answer));
    return JudgeNumbers(exercise, numbers);
  }
  if (!exercise.measured.empty() && absl::AsciiStrToLower(answer).find("head") != answer.npos) {
    return JudgeClaim(exercise.measured, answer);
  }
  CLIENT_ASSIGN_OR_RETURN(const std::set<size_t> letters, ReadLetters(exercise, answer));
  return JudgeLetters(exercise, letters);
}

absl::StatusOr<Verdict> JudgeClaim(const std::vector<MeasuredHead>& measured,
                                   absl::string_view claim) {
  std::vector<double> numbers;
  std::vector<std::string> beyond;
  bool less = false, compares = false;
  std::string text = absl::AsciiStrToLower(claim);
  while (!text.empty() && text.back() == '.') text.pop_back();
  for (absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(" \t,;:"), absl::SkipEmpty())) {
    const std::string word(part);
    double number = 0.0;
    if (absl::SimpleAtod(word, &number) && std::isfinite(number)) {
      numbers.push_back(number);
    } else if (!Measurable(word)) {
      beyond.push_back(CleanText(word));
    }
    less |= word == "less" || word == "smaller" || word == "<";
    compares |= word == "more" || word == "larger" || word == ">";
  }
  if (!beyond.empty()) {
    return Verdict{
        false, absl::StrCat("Beyond what was measured, in the words: ", absl::StrJoin(beyond, " "),
                            ".\nMeasured was how far y moves, here, when a head's z is zeroed: "
                            "no task, no meaning, no other input.\n")};
  }
  const auto find = [&](double id) {
    return std::find_if(measured.begin(), measured.end(), [id](const MeasuredHead& head) {
      return static_cast<double>(head.id) == id;
    });
  };
  if (numbers.size() != 2 || find(numbers[0]) == measured.end()) {
    return absl::InvalidArgumentError(
        "answer: a claim must name two heads (head 1 > head 0) or a head and its effect (head 1 = "
        "0.27); was something else");
  }
  const MeasuredHead& a = *find(numbers[0]);
  if (!less && !compares) {
    const bool right = std::fabs(numbers[1] - a.effect) <= 0.005 * std::max(1.0, a.effect);
    return Verdict{right, absl::StrFormat("%s: zeroing head %d moved y by %.4f (relative L2).\n",
                                          right ? "Within what was measured"
                                                : "Contradicted by what was measured",
                                          a.id, a.effect)};
  }
  if (find(numbers[1]) == measured.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("answer: must name heads that were measured; was ", Plain(numbers[1])));
  }
  const MeasuredHead& b = *find(numbers[1]);
  const bool right = less ? a.effect < b.effect : a.effect > b.effect;
  const bool apart = a.low > b.high || b.low > a.high;
  return Verdict{
      right,
      absl::StrFormat("%s: head %d moved y by %.4f [%.4f, %.4f], head %d by %.4f [%.4f, "
                      "%.4f].\n%s\n",
                      right ? "Within what was measured" : "Contradicted by what was measured",
                      a.id, a.effect, a.low, a.high, b.id, b.effect, b.low, b.high,
                      apart ? "The intervals lie apart: more sequences of this kind would "
                              "hardly turn it round."
                            : "The intervals overlap: of other sequences it may not hold.")};
}

}  // namespace headwise::client
