// SPDX-License-Identifier: Apache-2.0
// Exercises that calculate one number of a forward from the numbers before it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/learn/blocks.h"
#include "client/learn/exercise.h"
#include "client/learn/trace.h"
#include "client/report.h"
#include "client/status.h"

namespace headwise::client {
namespace {

// Figures are given with four decimals: answers may be as far off as those make them.
constexpr double kTolerance = 0.005;
constexpr int64_t kWidestByHand = 8;

// One head's row of one sequence: what all three questions are about.
struct Row {
  const Stages& n;
  int64_t head, query;

  int64_t keys() const { return n.keys[0]; }
  double Score(int64_t r, int64_t i, int64_t j) const { return n.Pair(n.scores[0], 0, r, i, j); }
  double Weight(int64_t r, int64_t i, int64_t j) const { return n.Pair(n.p[0], 0, r, i, j); }
  // Hidden keys have a weight of exactly 0.
  bool Visible(int64_t i, int64_t j) const { return Weight(head, i, j) != 0.0; }
  std::string Name() const {
    return absl::StrCat("head ", n.layout.head_ids[static_cast<size_t>(head)], ", query ", query);
  }
};

std::string List(int64_t count, const std::function<double(int64_t)>& value) {
  std::vector<std::string> texts;
  for (int64_t i = 0; i < count; ++i) texts.push_back(ShortNumber(value(i)));
  return absl::StrJoin(texts, ", ");
}

Exercise ScoreExercise(ExerciseSource* source, const Row& row) {
  const Stages& n = row.n;
  const int64_t key = source->Below(row.keys()), g = n.layout.kv_head(row.head);
  const int64_t width = n.layout.q.widths[static_cast<size_t>(row.head)];
  const auto dot = [&](int64_t i, int64_t j) {
    double sum = 0.0;
    for (int64_t f = 0; f < width; ++f) sum += n.q.at(i, row.head, f) * n.k.at(j, g, f);
    return sum;
  };
  const double scale = n.layout.scale[static_cast<size_t>(row.head)];
  const double d_model = source->layer.spec().d_model();
  const double heads = static_cast<double>(n.layout.heads());
  Exercise exercise = source->Start("calculation");
  exercise.question = absl::StrCat(
      "In ", row.Name(), ": q = (",
      List(width, [&](int64_t f) { return n.q.at(row.query, row.head, f); }), "), and key ", key,
      " has k = (", List(width, [&](int64_t f) { return n.k.at(key, g, f); }), ").\nD is ", d_model,
      ", dk ", width,
      source->layer.spec().has_scale()
          ? absl::StrCat(", the layer's own scale ", ShortNumber(scale))
          : ", the scale the usual one",
      ". What is the score, before the mask?\n");
  exercise.numbers = {row.Score(row.head, row.query, key)};
  exercise.answer_form = "one number";
  const double product = dot(row.query, key);
  exercise.wrong = {
      {{product}, "q k without the scale"},
      {{product / std::sqrt(d_model)}, "scaled by 1/sqrt(D); a head has only dk features"},
      {{product / std::sqrt(heads)}, "scaled by 1/sqrt(H)"},
      {{product * scale * scale}, "the scale was applied twice"}};
  if (key < n.queries[0]) {
    exercise.wrong.push_back(
        {{dot(key, std::min(row.query, row.keys() - 1)) * scale}, "query and key changed places"});
  }
  exercise.worked =
      absl::StrCat("q k = ", ShortNumber(product), ", times the scale ", ShortNumber(scale), " = ",
                   ShortNumber(exercise.numbers[0]), ", as the layer computes it.\n");
  return exercise;
}

// The visible weights of the row as `weight` gives them, over their sum where `normalised`.
std::vector<double> VisibleWeights(const Row& row, bool normalised,
                                   const std::function<double(int64_t)>& weight) {
  std::vector<double> weights;
  double sum = 0.0;
  for (int64_t j = 0; j < row.keys(); ++j) {
    if (!row.Visible(row.query, j)) continue;
    weights.push_back(weight(j));
    sum += weights.back();
  }
  for (double& value : weights) value /= normalised ? sum : 1.0;
  return weights;
}

Exercise WeightsExercise(ExerciseSource* source, const Row& row) {
  const Stages& n = row.n;
  const auto exponential = [&](int64_t j) { return std::exp(row.Score(row.head, row.query, j)); };
  std::vector<std::string> visible;
  double all = 0.0;
  for (int64_t j = 0; j < row.keys(); ++j) {
    all += exponential(j);
    if (row.Visible(row.query, j)) visible.push_back(absl::StrCat(j));
  }
  Exercise exercise = source->Start("calculation");
  exercise.question =
      absl::StrCat("In ", row.Name(), ": the scores are (",
                   List(row.keys(), [&](int64_t j) { return row.Score(row.head, row.query, j); }),
                   "), and the mask leaves the keys ", absl::StrJoin(visible, ", "),
                   ".\nWhat are the weights of these keys?\n");
  exercise.numbers =
      VisibleWeights(row, false, [&](int64_t j) { return row.Weight(row.head, row.query, j); });
  exercise.answer_form = absl::StrCat(exercise.numbers.size(), " numbers with commas");
  exercise.wrong = {
      {VisibleWeights(row, false, [&](int64_t j) { return exponential(j) / all; }),
       "hidden keys took part in the softmax: the mask must act before it"},
      {VisibleWeights(row, false, exponential), "exponentials that nothing was divided by"},
      {VisibleWeights(row, false,
                      [&](int64_t j) {
                        double sum = 0.0;
                        for (int64_t r = 0; r < n.layout.heads(); ++r) {
                          sum += std::exp(row.Score(r, row.query, j));
                        }
                        return exponential(j) / sum;
                      }),
       "softmax over the heads; it goes over the keys"},
      {VisibleWeights(row, false,
                      [&](int64_t j) {
                        double sum = 0.0;
                        for (int64_t i = 0; i < n.queries[0]; ++i) {
                          if (row.Visible(i, j)) sum += std::exp(row.Score(row.head, i, j));
                        }
                        return exponential(j) / sum;
                      }),
       "softmax over the queries; it goes over the keys"},
      {VisibleWeights(row, true, [&](int64_t j) { return row.Score(row.head, row.query, j); }),
       "the scores were divided by their sum, without exponentials"}};
  exercise.worked = absl::StrCat(
      "exp(score) of the visible keys: ",
      absl::StrJoin(VisibleWeights(row, false, exponential), ", ",
                    [](std::string* out, double value) { out->append(ShortNumber(value)); }),
      "; over their sum: ", exercise.Expected(), ", as the layer computes them.\n");
  return exercise;
}

Exercise ReadingExercise(ExerciseSource* source, const Row& row) {
  const Stages& n = row.n;
  const int64_t g = n.layout.kv_head(row.head);
  const int64_t feature = source->Below(n.layout.z.widths[static_cast<size_t>(row.head)]);
  const auto value = [&](int64_t j) { return n.v.at(j, g, feature); };
  const auto read = [&](const std::function<double(int64_t)>& weight) {
    double sum = 0.0;
    for (int64_t j = 0; j < row.keys(); ++j) sum += weight(j) * value(j);
    return sum;
  };
  int64_t visible = 0;
  for (int64_t j = 0; j < row.keys(); ++j) visible += row.Visible(row.query, j) ? 1 : 0;
  Exercise exercise = source->Start("calculation");
  exercise.question =
      absl::StrCat("In ", row.Name(), ": the weights are (",
                   List(row.keys(), [&](int64_t j) { return row.Weight(row.head, row.query, j); }),
                   "), and feature ", feature, " of the keys' values is (", List(row.keys(), value),
                   ").\nWhat is feature ", feature, " of this head's z?\n");
  exercise.numbers = {n.z.at(row.query, row.head, feature)};
  exercise.answer_form = "one number";
  exercise.wrong = {{{read([&](int64_t j) {
                       return row.Visible(row.query, j) ? 1.0 / static_cast<double>(visible) : 0.0;
                     })},
                     "the plain mean of the visible values, whatever the weights"},
                    {{read([](int64_t) { return 1.0; })}, "the sum of the values, without weights"},
                    {{value(row.keys() - 1)}, "the last key's value alone"}};
  for (int64_t r = 0; r < n.layout.heads(); ++r) {
    if (r == row.head) continue;
    exercise.wrong.push_back(
        {{read([&](int64_t j) { return row.Weight(r, row.query, j); })},
         absl::StrCat("the weights of head ", n.layout.head_ids[static_cast<size_t>(r)])});
  }
  exercise.worked =
      absl::StrCat("sum over keys of weight times value = ", ShortNumber(exercise.numbers[0]),
                   ", as the layer computes it.\n");
  return exercise;
}

}  // namespace

absl::StatusOr<Exercise> MakeCalculationExercise(ExerciseSource* source) {
  const int64_t tokens = source->Between(3, 4);
  CLIENT_ASSIGN_OR_RETURN(
      const Stages n, RunStages(source->client, source->layer, source->Input(1, tokens), false));
  const v1::LayerSpec& spec = source->layer.spec();
  const Row row{n, source->Below(n.layout.heads()), source->Between(1, tokens - 1)};
  const bool plain_scores = !spec.has_position_bias() && !spec.has_softcap() &&
                            n.layout.q.widths[static_cast<size_t>(row.head)] <= kWidestByHand;
  const bool plain_weights = !spec.sinks();
  const bool plain_reading = spec.gates().empty();
  std::vector<Exercise (*)(ExerciseSource*, const Row&)> makers;
  if (plain_scores) makers.push_back(ScoreExercise);
  if (plain_weights) makers.push_back(WeightsExercise);
  if (plain_reading) makers.push_back(ReadingExercise);
  if (makers.empty()) {
    return absl::UnimplementedError(
        "kind: a calculation must be possible by hand; was a layer with sinks, gates and scores of "
        "more than q k");
  }
  const size_t chosen = static_cast<size_t>(source->Below(static_cast<int64_t>(makers.size())));
  Exercise exercise = makers[chosen](source, row);
  exercise.question =
      absl::StrCat("On ", CleanText(source->title), ", ", tokens, " tokens.\n", exercise.question);
  exercise.tolerance = kTolerance;
  return exercise;
}

}  // namespace headwise::client
