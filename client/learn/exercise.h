// SPDX-License-Identifier: Apache-2.0
// Exercises on a layer: a question, what an answer must be, and what wrong answers betray. What is
// right comes from the server's own computation, or from the counter that it shares.
#ifndef HEADWISE_CLIENT_LEARN_EXERCISE_H_
#define HEADWISE_CLIENT_LEARN_EXERCISE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/learn/layer_numbers.h"
#include "client/learn/temporary_layer.h"

namespace headwise::client {

// Numbers that a known mistake gives instead.
struct WrongNumbers {
  std::vector<double> numbers;
  std::string text;  // what went wrong: "that is q·k before the scale"
};

// One of several statements, by the letters a, b, …
struct Choice {
  std::string text;
  bool right = false;
  std::string why;  // said where it was judged wrongly, and in the solution
};

// An ablation's figures, for claims in the learner's own words.
struct MeasuredHead {
  int64_t id = 0;
  double effect = 0.0;  // relative L2 at y
  double low = 0.0, high = 0.0;
};

struct Exercise {
  std::string kind;
  std::string layer;
  uint32_t seed = 0;
  std::string question;     // with all figures that it needs; ends in a newline
  std::string answer_form;  // "4 whole numbers with commas, like 2,8,10,64"
  std::string worked;       // the solution; ends in a newline

  // An answer is numbers, or letters of choices.
  std::vector<double> numbers;
  double tolerance = 0.0;  // of each number: relative to the larger of it and 1
  std::vector<WrongNumbers> wrong;
  std::vector<Choice> choices;
  std::vector<MeasuredHead> measured;  // interpretation: an own claim may be judged by them

  std::string Expected() const;  // as one would type it
};

struct Verdict {
  bool right = false;
  std::string explanation;  // ends in a newline
};

// INVALID_ARGUMENT for an answer of another form.
absl::StatusOr<Verdict> JudgeAnswer(const Exercise& exercise, absl::string_view answer);

// A claim "head A > head B" or "head A = 0.27" about what was measured. Words that say more than
// a measurement can are named. Pure.
absl::StatusOr<Verdict> JudgeClaim(const std::vector<MeasuredHead>& measured,
                                   absl::string_view claim);

// What a kind's maker draws from. The same seed on the same layer gives the same exercise.
struct ExerciseSource {
  Client* client = nullptr;
  v1::LayerDetails layer;
  std::string title;  // how the question calls it
  uint32_t seed = 0;
  std::mt19937 random;

  int64_t Below(int64_t bound);  // 0 … bound - 1
  int64_t Between(int64_t low, int64_t high);
  template <typename T>
  void Shuffle(std::vector<T>* values) {
    for (size_t i = values->size(); i > 1; --i) {
      std::swap((*values)[i - 1], (*values)[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }
  HeadLayout layout() const { return LayoutOf(layer.spec()); }
  // B sequences of T tokens, tenths between -1 and 1, of wide layers hundredths (and a memory of as
  // many rows where k and v are computed from another width).
  v1::AttentionInput Input(int64_t batch, int64_t tokens);
  Exercise Start(const std::string& kind) const;
};

// "  a) first", … a line each.
std::string LetteredChoices(const std::vector<Choice>& choices);

// How far y moves (relative L2), as the server computes it, if z of the heads at these places holds
// `z` [N, sum of their widths] instead. Errors of Ablate.
absl::StatusOr<double> EffectOfReplacing(const ExerciseSource& source,
                                         const v1::AttentionInput& input,
                                         const std::vector<int64_t>& places,
                                         const std::vector<float>& z);

// The names of the kinds, in the order of the help text.
const std::vector<absl::string_view>& ExerciseKinds();

// Makes an exercise on the layer `name`; empty: on a small one of whole numbers that exists for
// this only. UNIMPLEMENTED: a kind that the layer has nothing for; errors of the server's calls.
absl::StatusOr<Exercise> MakeExercise(Client* client, absl::string_view kind,
                                      const std::string& name, uint32_t seed);

// A small layer for the seed: D 4 or 6, causal, weights of whole numbers, H 2 or 3.
absl::StatusOr<std::unique_ptr<TemporaryLayer>> UploadSmallLayer(Client* client, uint32_t seed);

// The makers, one a kind.
absl::StatusOr<Exercise> MakeShapeExercise(ExerciseSource* source);
absl::StatusOr<Exercise> MakeCalculationExercise(ExerciseSource* source);
absl::StatusOr<Exercise> MakeCostExercise(ExerciseSource* source);
absl::StatusOr<Exercise> MakeInterpretationExercise(ExerciseSource* source);
absl::StatusOr<Exercise> MakePermutationExercise(ExerciseSource* source);
absl::StatusOr<Exercise> MakeDebuggingExercise(ExerciseSource* source);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LEARN_EXERCISE_H_
