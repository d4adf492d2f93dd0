// SPDX-License-Identifier: Apache-2.0
// Exercises on the order of heads: what moves, what stays, and when the output notices.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/learn/exercise.h"
#include "client/report.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr double kSame = 1e-4;  // of the largest |y|: rounding

// The layer's head ids in another order.
std::vector<int64_t> OtherOrder(ExerciseSource* source, std::vector<int64_t> ids) {
  const std::vector<int64_t> before = ids;
  while (ids == before) source->Shuffle(&ids);
  return ids;
}

// The same input through the layer with its heads in the order `ids`.
absl::StatusOr<Stages> RunPermuted(ExerciseSource* source, const std::vector<int64_t>& ids,
                                   const v1::AttentionInput& input) {
  v1::DeriveLayerRequest request;
  request.set_name(source->layer.name());
  request.set_kind(v1::DeriveLayerRequest::PERMUTE);
  for (const int64_t id : ids) request.add_heads(static_cast<uint32_t>(id));
  CLIENT_ASSIGN_OR_RETURN(const auto permuted, TemporaryLayer::Derive(source->client, request));
  CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails details,
                          DescribeLayer(source->client, permuted->name()));
  return RunStages(source->client, details, input, false);
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0.0, largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::fabs(a[i] - b[i]));
    largest = std::max(largest, std::fabs(a[i]));
  }
  return largest == 0.0 ? difference : difference / largest;
}

int64_t PlaceOf(const std::vector<int64_t>& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) - ids.begin();
}

std::vector<double> FirstAndLast(const HeadColumns& columns, int64_t place) {
  const double first = static_cast<double>(columns.begins[static_cast<size_t>(place)]);
  return {first, first + static_cast<double>(columns.widths[static_cast<size_t>(place)]) - 1.0};
}

absl::StatusOr<Exercise> ColumnsExercise(ExerciseSource* source) {
  const HeadLayout layout = source->layout();
  const std::vector<int64_t> order = OtherOrder(source, layout.head_ids);
  CLIENT_ASSIGN_OR_RETURN(const Stages n, RunPermuted(source, order, source->Input(1, 4)));
  const int64_t id = order[static_cast<size_t>(source->Below(layout.heads()))];
  Exercise exercise = source->Start("permutation");
  exercise.question = absl::StrCat(
      "On ", CleanText(source->title), " with heads ", absl::StrJoin(layout.head_ids, ","),
      " of widths dv ", absl::StrJoin(layout.z.widths, ","), ": `permute --order ",
      absl::StrJoin(order, ","),
      "` moves each head with its rows and columns.\nWhich columns of z "
      "[N, sum of dv] hold head ",
      id, " then: the first and the last?\n");
  exercise.numbers = FirstAndLast(n.layout.z, PlaceOf(n.layout.head_ids, id));
  exercise.answer_form = "two whole numbers with a comma, the first and the last column";
  exercise.wrong = {
      {FirstAndLast(layout.z, PlaceOf(layout.head_ids, id)), "its columns before it was moved"},
      {FirstAndLast(layout.z, PlaceOf(layout.head_ids,
                                      order[static_cast<size_t>(PlaceOf(layout.head_ids, id))])),
       "the order read the wrong way: it names which head comes to each place"}};
  exercise.worked = absl::StrCat("The order names the head at each place. Head ", id,
                                 " comes to place ", PlaceOf(n.layout.head_ids, id), ": columns ",
                                 exercise.Expected(), ", as the permuted layer was asked.\n");
  return exercise;
}

std::vector<Choice> SameOrNot(bool same, const std::string& measured) {
  return {{"y stays the same, but for rounding", same, measured}, {"y changes", !same, measured}};
}

absl::StatusOr<Exercise> MovedWithOutputExercise(ExerciseSource* source) {
  const HeadLayout layout = source->layout();
  const std::vector<int64_t> order = OtherOrder(source, layout.head_ids);
  const v1::AttentionInput input = source->Input(1, 4);
  CLIENT_ASSIGN_OR_RETURN(const Stages before,
                          RunStages(source->client, source->layer, input, false));
  CLIENT_ASSIGN_OR_RETURN(const Stages after, RunPermuted(source, order, input));
  const double difference = LargestDifference(before.y, after.y);
  Exercise exercise = source->Start("permutation");
  exercise.choices = SameOrNot(
      difference < kSame,
      absl::StrFormat("y is a sum of z_r W_O^(r) over heads: its order doesn't matter while each "
                      "head keeps its own rows of W_O. Measured: %.1e of the largest |y|",
                      difference));
  exercise.question = absl::StrCat("On ", CleanText(source->title),
                                   ": the heads are put in the order ", absl::StrJoin(order, ","),
                                   ",\neach with its columns of W_q, W_k, W_v and its rows of W_O, "
                                   "as x W writes them.\nWhat becomes "
                                   "of the layer's output?\n",
                                   LetteredChoices(exercise.choices));
  return exercise;
}

// z of two heads exchanged in front of a W_O that stays: REPLACE does just that.
absl::StatusOr<Exercise> SwappedBeforeOutputExercise(ExerciseSource* source) {
  const HeadLayout layout = source->layout();
  const int64_t a = source->Below(layout.heads() - 1),
                b = source->Between(a + 1, layout.heads() - 1);
  const v1::AttentionInput input = source->Input(1, 4);
  CLIENT_ASSIGN_OR_RETURN(const Stages n, RunStages(source->client, source->layer, input, false));
  const int64_t width = layout.z.widths[0];
  std::vector<float> swapped;
  for (int64_t t = 0; t < n.queries[0]; ++t) {
    for (const int64_t head : {b, a}) {
      for (int64_t f = 0; f < width; ++f) {
        swapped.push_back(static_cast<float>(n.z.at(t, head, f)));
      }
    }
  }
  CLIENT_ASSIGN_OR_RETURN(const double moved, EffectOfReplacing(*source, input, {a, b}, swapped));
  Exercise exercise = source->Start("permutation");
  exercise.choices =
      SameOrNot(moved < kSame, absl::StrFormat("W_O multiplies by place: each head's z now meets "
                                               "the other's rows. Measured: relative L2 %.4f",
                                               moved));
  exercise.question = absl::StrCat(
      "On ", CleanText(source->title), ": z of heads ", layout.head_ids[static_cast<size_t>(a)],
      " and ", layout.head_ids[static_cast<size_t>(b)],
      " change places before W_O, which stays as it is.\nWhat becomes of the layer's output?\n",
      LetteredChoices(exercise.choices));
  return exercise;
}

}  // namespace

absl::StatusOr<Exercise> MakePermutationExercise(ExerciseSource* source) {
  const HeadLayout layout = source->layout();
  if (layout.heads() < 2) {
    return absl::UnimplementedError("kind: a permutation needs two heads; was a layer of one");
  }
  const int64_t chosen = source->Below(layout.z.equal() ? 3 : 2);
  absl::StatusOr<Exercise> exercise = chosen == 0   ? ColumnsExercise(source)
                                      : chosen == 1 ? MovedWithOutputExercise(source)
                                                    : SwappedBeforeOutputExercise(source);
  if (!exercise.ok() || exercise->choices.empty()) return exercise;
  exercise->answer_form = "a or b";
  exercise->worked = absl::StrCat(exercise->Expected(), ": ", exercise->choices[0].why, ".\n");
  return exercise;
}

}  // namespace headwise::client
