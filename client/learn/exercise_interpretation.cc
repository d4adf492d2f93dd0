// SPDX-License-Identifier: Apache-2.0
// Exercises on claims: what effects of ablations say, and what they don't.
#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/learn/exercise.h"
#include "client/report.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr int64_t kSequences = 12;  // from 8 on there are intervals
constexpr int64_t kTokens = 6;
constexpr size_t kClaims = 5;

absl::StatusOr<std::vector<MeasuredHead>> Measure(ExerciseSource* source) {
  v1::AblateRequest request;
  request.set_layer(source->layer.name());
  *request.mutable_input() = source->Input(kSequences, kTokens);
  request.set_sweep(v1::LEAVE_ONE_OUT);
  CLIENT_ASSIGN_OR_RETURN(const v1::AblateResult result, source->client->Ablate(request));
  std::vector<MeasuredHead> heads;
  for (const v1::AblationEffect& ablation : result.ablations()) {
    if (!ablation.effect().has_relative_l2() || ablation.heads().empty()) continue;
    const v1::Interval& interval = ablation.intervals().relative_l2();
    heads.push_back(
        {ablation.heads(0), ablation.effect().relative_l2(), interval.low(), interval.high()});
  }
  std::sort(heads.begin(), heads.end(),
            [](const auto& a, const auto& b) { return a.effect > b.effect; });
  return heads;
}

// Claims about the head that matters most and the one that matters least here. What is right is
// decided by the figures.
std::vector<Choice> Claims(const std::vector<MeasuredHead>& heads, ExerciseSource* source) {
  const MeasuredHead &most = heads.front(), &least = heads.back();
  const size_t at = static_cast<size_t>(source->Below(static_cast<int64_t>(heads.size()) - 1));
  const MeasuredHead &upper = heads[at], &lower = heads[at + 1];
  const bool overlap = lower.high >= upper.low;
  const auto head = [](const MeasuredHead& h) { return absl::StrCat("head ", h.id); };
  const std::string scope = absl::StrCat("on these ", kSequences, " sequences, zeroing ");
  std::vector<Choice> claims = {
      {absl::StrCat("Measured ", scope, head(most), " moved y more than zeroing ", head(least),
                    " did."),
       most.effect > least.effect,
       absl::StrFormat("that is what the figures say (%.4f against %.4f), no more", most.effect,
                       least.effect)},
      {absl::StrFormat("Zeroing head %d moved the layer's output by %.0f %% of its length, on this "
                       "input.",
                       upper.id, 100.0 * upper.effect),
       true, "it quotes the figure, at the place and on the input where it was measured"},
      {absl::StrCat("Measured ", scope, head(least), " moved y more than zeroing ", head(most),
                    " did."),
       least.effect > most.effect, "the figures say the opposite"},
      {absl::StrCat("The model doesn't need ", head(least), " for its task."), false,
       "effects were measured at this layer's output; no task was"},
      {absl::StrCat("Head ", most.id, " specialises in a relation between tokens."), false,
       "an effect's size says nothing of what a head does; no weight was looked at"},
      {absl::StrCat("On any text, ", head(most), " matters more than ", head(least), "."), false,
       absl::StrCat("only these ", kSequences, " sequences of random numbers were measured")},
      {absl::StrCat(head(upper), " and ", head(lower),
                    " are redundant: either can stand in for "
                    "the other."),
       false,
       "no pair was ablated and no two heads were compared: similar effects aren't "
       "similar heads"},
      {absl::StrCat("Other sequences of this kind would hardly put ", head(lower), " before ",
                    head(upper), "."),
       !overlap,
       overlap ? "their intervals overlap: that order may turn round on other sequences"
               : "their intervals over sequences lie apart"},
  };
  return claims;
}

// One to three claims that stay within the figures, among others that don't.
std::vector<Choice> SomeOf(std::vector<Choice> claims, ExerciseSource* source) {
  source->Shuffle(&claims);
  const auto beyond = std::stable_partition(claims.begin(), claims.end(),
                                            [](const Choice& claim) { return claim.right; });
  const int64_t right = std::min<int64_t>(beyond - claims.begin(), source->Between(1, 3));
  std::vector<Choice> some(claims.begin(), claims.begin() + right);
  some.insert(some.end(), beyond, claims.end());
  some.resize(kClaims);
  source->Shuffle(&some);
  return some;
}

}  // namespace

absl::StatusOr<Exercise> MakeInterpretationExercise(ExerciseSource* source) {
  CLIENT_ASSIGN_OR_RETURN(const std::vector<MeasuredHead> heads, Measure(source));
  if (heads.size() < 2) {
    return absl::UnimplementedError(absl::StrCat(
        "kind: an interpretation needs two heads with a defined effect; was ", heads.size()));
  }
  Exercise exercise = source->Start("interpretation");
  exercise.measured = heads;
  exercise.question = absl::StrCat(
      "On ", CleanText(source->title), ": ", kSequences, " sequences of ", kTokens,
      " tokens of random numbers; z of one head at a time set to zero, the change\nof y measured "
      "as relative L2, with a 95 % interval over sequences:\n");
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < heads.size(); ++i) {
    if (heads.size() > kShown && i >= kShown / 2 && i + kShown / 2 < heads.size()) continue;
    absl::StrAppend(&exercise.question,
                    absl::StrFormat("  head %-3d %.4f  [%.4f, %.4f]\n", heads[i].id,
                                    heads[i].effect, heads[i].low, heads[i].high));
  }
  const std::vector<Choice> claims = SomeOf(Claims(heads, source), source);
  absl::StrAppend(&exercise.question, "Which of these claims stay within what was measured?\n",
                  LetteredChoices(claims));
  for (size_t i = 0; i < claims.size(); ++i) {
    absl::StrAppend(&exercise.worked, std::string(1, static_cast<char>('a' + i)), ") ",
                    claims[i].right ? "within: " : "beyond: ", claims[i].why, ".\n");
  }
  exercise.choices = claims;
  exercise.answer_form =
      "letters with commas, like a,c, or a claim of your own, like \"head 1 > head 0\"";
  return exercise;
}

}  // namespace headwise::client
