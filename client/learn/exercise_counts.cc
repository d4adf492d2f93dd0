// SPDX-License-Identifier: Apache-2.0
// Exercises on shapes, from the stages of a forward that was run, and on costs, from its counts.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/counts_table.h"
#include "client/learn/exercise.h"
#include "client/learn/trace.h"
#include "client/report.h"
#include "client/status.h"

namespace headwise::client {
namespace {

// A stage that can be asked for, and how the question calls it.
struct AskedStage {
  const char* id;
  const char* words;
};
constexpr AskedStage kAskedStages[] = {
    {"q_heads", "q right after its columns are read as heads"},
    {"q_transposed", "q as the scores need it, heads before positions"},
    {"k_transposed", "k as the scores need it, key/value heads before positions"},
    {"scores", "the scores"},
    {"z_transposed", "the head outputs z = p v, heads before positions"},
    {"z", "z with its heads side by side, as W_O takes it"},
    {"y", "the layer's output y"},
};

std::string LayerLine(const ExerciseSource& source) {
  const HeadLayout layout = source.layout();
  const auto widths = [](const HeadColumns& columns) {
    return columns.equal() ? absl::StrCat(columns.widths[0]) : absl::StrJoin(columns.widths, ",");
  };
  return absl::StrCat("On ", CleanText(source.title), ": D ", source.layer.spec().d_model(), ", H ",
                      layout.heads(), " query heads, G ", layout.k.heads(), " key/value heads, dk ",
                      widths(layout.q), ", dv ", widths(layout.z));
}

// What a norm over the whole width counts beside the heads; empty where there is nothing.
std::string StatisticText(const v1::QkNormSpec& norm) {
  if (norm.q_statistic_rows() == 0 && norm.k_statistic_rows() == 0) return "";
  return absl::StrCat("; rows of pruned heads in the norm's statistic: ", norm.q_statistic_rows(),
                      " of q, ", norm.k_statistic_rows(), " of k");
}

std::vector<double> Doubles(const Shape& shape) { return {shape.begin(), shape.end()}; }

// What a shape becomes by each usual slip.
std::vector<WrongNumbers> WrongShapes(const ExerciseSource& source, const TraceStage& stage) {
  const HeadLayout layout = source.layout();
  const double width = source.layer.spec().d_model();
  const std::vector<double> right = Doubles(stage.shapes[0]);
  std::vector<WrongNumbers> wrong;
  const auto add = [&](std::vector<double> numbers, const char* text) {
    if (numbers != right) wrong.push_back({std::move(numbers), text});
  };
  std::vector<double> numbers = right;
  if (right.size() == 4) {
    std::swap(numbers[1], numbers[2]);
    add(numbers, "the head and the position axis changed places: the transpose is there or not");
    numbers = right;
    numbers[3] = width;
    add(numbers, "the last axis has the model's width; a head has only its own");
    numbers = right;
    std::replace(numbers.begin() + 1, numbers.end(), static_cast<double>(layout.k.heads()),
                 static_cast<double>(layout.heads()));
    add(numbers, "key/value heads were counted as query heads: G, not H");
  }
  if (stage.id == "scores") {
    add({right[0], right[2], right[3]}, "one score matrix for all heads; each head has its own");
  }
  if (stage.id == "z") {
    numbers = right;
    numbers[2] = static_cast<double>(layout.z.widths[0]);
    add(numbers, "one head's width; all heads stand side by side");
  }
  return wrong;
}

// A count that can be asked for, and how the question calls it.
struct AskedCount {
  const char* id;
  const char* words;
};
constexpr AskedCount kAskedCounts[] = {
    {"score_elements", "score elements, every query against every key"},
    {"score_elements_causal", "score elements that a causal mask leaves"},
    {"parameters", "parameters, without biases"},
    {"parameters_with_bias", "parameters, with the biases that it has"},
    {"parameters_k", "parameters of W_k, without its bias"},
    {"macs_dense", "multiply-accumulates of a forward, all pairs (projections, scores, values)"},
    {"macs_causal", "multiply-accumulates of a forward, causal pairs only"},
    {"flops_dense", "FLOPs of a forward, all pairs (2 per multiply-accumulate)"},
    {"flops_causal", "FLOPs of a forward, causal pairs only (2 per multiply-accumulate)"},
    {"macs_scores_dense", "multiply-accumulates of q k^T, all pairs"},
    {"macs_values_causal", "multiply-accumulates of p v, causal pairs only"},
    {"flops_q", "FLOPs of the projection x W_q (2 per multiply-accumulate)"},
    {"activation_bytes", "bytes of x, q, k, v, z and y together, 4 a number"},
    {"kv_bytes_per_token", "bytes of k and v that one more key position takes, 4 a number"},
    {"score_tensor_bytes", "bytes of all scores if they were stored, 4 a number"},
};

std::string CountText(const v1::Count& count) {
  return absl::StrCat(CountName(count.id()), " (", count.convention(), ")");
}

const v1::Count* FindCount(const v1::LayerDetails& details, const std::string& id) {
  for (const v1::Count& count : details.counts()) {
    if (count.id() == id) return &count;
  }
  return nullptr;
}

// How the count comes about: of a total of work, its stages with their numbers.
std::string WorkedCount(const v1::LayerDetails& details, const v1::Count& count) {
  const std::string& id = count.id();
  const size_t cut = std::min(id.find('_'), id.size());
  const std::string unit = id.substr(0, cut), pairs = id.substr(cut);
  const bool work = unit == "macs" || unit == "flops";
  std::vector<std::string> parts;
  if (work && (pairs == "_dense" || pairs == "_causal")) {
    for (const std::string part :
         {"q", "k", "v", "o", "q_statistic", "k_statistic", "scores", "values"}) {
      const bool by_pair = part == "scores" || part == "values";
      const v1::Count* stage =
          FindCount(details, absl::StrCat(unit, "_", part, by_pair ? pairs : ""));
      if (stage != nullptr) parts.push_back(absl::StrCat(part, " ", Grouped(stage->value())));
    }
  }
  return absl::StrCat(CountName(id), " = ",
                      parts.empty() ? count.convention() : absl::StrJoin(parts, " + "), " = ",
                      Grouped(count.value()), ".\n");
}

}  // namespace

absl::StatusOr<Exercise> MakeShapeExercise(ExerciseSource* source) {
  const int64_t batch = source->Between(2, 4), tokens = source->Between(5, 9);
  const v1::AttentionInput input = source->Input(batch, tokens);
  CLIENT_ASSIGN_OR_RETURN(const std::vector<double> x, WireDoubles(input.x(), "x"));
  CLIENT_ASSIGN_OR_RETURN(const Stages numbers,
                          RunStages(source->client, source->layer, input, false));
  const std::vector<TraceStage> stages =
      StagesOf(numbers, x, source->layer.spec().d_model(), source->layer.spec());
  // Heads of unequal width have no shape with a head axis.
  std::vector<std::pair<const TraceStage*, const char*>> asked;
  for (const AskedStage& ask : kAskedStages) {
    for (const TraceStage& stage : stages) {
      if (stage.id == ask.id && stage.shapes.size() == 1) asked.emplace_back(&stage, ask.words);
    }
  }
  const auto& [stage, words] =
      asked[static_cast<size_t>(source->Below(static_cast<int64_t>(asked.size())))];
  Exercise exercise = source->Start("shape");
  exercise.question =
      absl::StrCat(LayerLine(*source), ".\n", batch, " sequences of ", tokens,
                   " tokens go through it.\nWhat is the shape of ", words, ", the batch first?\n");
  exercise.numbers = Doubles(stage->shapes[0]);
  exercise.answer_form = absl::StrCat(exercise.numbers.size(), " whole numbers with commas");
  exercise.wrong = WrongShapes(*source, *stage);
  exercise.worked = absl::StrCat("The axes are ", absl::StrJoin(stage->axes, ", "), ": ",
                                 ShapeToString(stage->shapes[0]),
                                 ", as the layer's own forward gives it (", stage->what, ").\n");
  return exercise;
}

absl::StatusOr<Exercise> MakeCostExercise(ExerciseSource* source) {
  v1::GetLayerRequest request;
  request.set_name(source->layer.name());
  request.set_batch(static_cast<uint32_t>(source->Between(2, 4)));
  request.set_queries(static_cast<uint32_t>(source->Between(5, 12)));
  CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails details, source->client->GetLayer(request));
  const AskedCount& ask = kAskedCounts[static_cast<size_t>(
      source->Below(static_cast<int64_t>(std::size(kAskedCounts))))];
  Exercise exercise = source->Start("cost");
  const v1::Count* asked = FindCount(details, ask.id);
  if (asked == nullptr) {
    return absl::InternalError(
        absl::StrCat("answer: must hold the count ", ask.id, "; was without"));
  }
  const double value = static_cast<double>(asked->value());
  const v1::Count* biased = FindCount(details, "parameters_with_bias");
  exercise.question =
      absl::StrCat(LayerLine(*source), StatisticText(details.spec().qk_norm()),
                   "; biases: ", biased == nullptr ? "unknown" : biased->convention(), ".\nB ",
                   request.batch(), " sequences of T ", request.queries(),
                   " tokens, which are the keys too. How many: ", ask.words, "?\n");
  exercise.numbers = {value};
  exercise.answer_form = "one whole number";
  for (const v1::Count& count : details.counts()) {
    if (count.value() == asked->value()) continue;
    exercise.wrong.push_back({{static_cast<double>(count.value())}, CountText(count)});
  }
  const auto add = [&](double number, const char* text) {
    exercise.wrong.push_back({{number}, text});
  };
  add(value / request.batch(), "one sequence was counted, not all B");
  add(value / static_cast<double>(details.spec().heads()), "one head was counted, not all H");
  add(value * 2,
      "everything was counted twice: a FLOP count where multiply-accumulates or numbers "
      "were asked for");
  add(value / 2, "half of it: multiply-accumulates where FLOPs were asked for, or half the pairs");
  add(value / 4, "numbers were counted where bytes were asked for");
  exercise.worked = WorkedCount(details, *asked);
  return exercise;
}

}  // namespace headwise::client
