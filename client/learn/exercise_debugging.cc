// SPDX-License-Identifier: Apache-2.0
// Exercises on wrong code: numbers that a known mistake gives, to be traced back to it. The
// mistakes' names are the audit's.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/learn/blocks.h"
#include "client/learn/exercise.h"
#include "client/report.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr int64_t kTokens = 3;
constexpr int64_t kShownHeads = 2;
constexpr int64_t kShownFeatures = 2;
constexpr size_t kChoices = 5;
constexpr double kDistinct = 1e-3;  // of z: more than rounding, and visible in four decimals

// What a mistake does to one sequence.
class WrongRun {
 public:
  explicit WrongRun(const Stages& n) : n_(n), h_(n.layout.heads()), t_(n.queries[0]) {}

  double Score(int64_t r, int64_t i, int64_t j) const { return n_.Pair(n_.scores[0], 0, r, i, j); }
  bool Visible(int64_t r, int64_t i, int64_t j) const {
    return n_.Pair(n_.p[0], 0, r, i, j) != 0.0;
  }
  int64_t heads() const { return h_; }
  int64_t tokens() const { return t_; }

  // z [T, sum of dv] of weights w(r, i, j).
  HeadTensor Read(const std::function<double(int64_t, int64_t, int64_t)>& weight) const {
    HeadTensor z = n_.z;
    for (int64_t i = 0; i < t_; ++i) {
      for (int64_t r = 0; r < h_; ++r) {
        const size_t begin =
            static_cast<size_t>(i * z.columns.total + z.columns.begins[static_cast<size_t>(r)]);
        for (int64_t f = 0; f < z.columns.widths[static_cast<size_t>(r)]; ++f) {
          double sum = 0.0;
          for (int64_t j = 0; j < n_.keys[0]; ++j) {
            sum += weight(r, i, j) * n_.v.at(j, n_.layout.kv_head(r), f);
          }
          z.values[begin + static_cast<size_t>(f)] = sum;
        }
      }
    }
    return z;
  }

  // z of exp(factor * score) over its sum along an axis; `masked`: hidden pairs take no part.
  enum class Axis { kKeys, kQueries, kHeads };
  HeadTensor Softmax(Axis axis, bool masked, double factor) const {
    const auto exponential = [&](int64_t r, int64_t i, int64_t j) {
      return masked && !Visible(r, i, j) ? 0.0 : std::exp(factor * Score(r, i, j));
    };
    return Read([&](int64_t r, int64_t i, int64_t j) {
      const int64_t length = axis == Axis::kKeys ? n_.keys[0] : axis == Axis::kQueries ? t_ : h_;
      double sum = 0.0;
      for (int64_t k = 0; k < length; ++k) {
        sum += axis == Axis::kKeys      ? exponential(r, i, k)
               : axis == Axis::kQueries ? exponential(r, k, j)
                                        : exponential(k, i, j);
      }
      return sum == 0.0 ? 0.0 : exponential(r, i, j) / sum;
    });
  }

  // z with the entry (token, head, feature) taken from elsewhere.
  HeadTensor Moved(const std::function<double(int64_t, int64_t, int64_t)>& from) const {
    HeadTensor z = n_.z;
    size_t at = 0;
    for (int64_t i = 0; i < t_; ++i) {
      for (int64_t r = 0; r < h_; ++r) {
        for (int64_t f = 0; f < z.columns.widths[0]; ++f) z.values[at++] = from(i, r, f);
      }
    }
    return z;
  }

 private:
  const Stages& n_;
  const int64_t h_, t_;
};

struct Mistake {
  std::string id;    // as in the audit
  std::string code;  // the wrong line
  HeadTensor z;
};

std::vector<Mistake> Mistakes(const v1::LayerSpec& spec, const Stages& n) {
  using Axis = WrongRun::Axis;
  const WrongRun run(n);
  std::vector<Mistake> mistakes;
  const auto add = [&](const char* id, const char* code, HeadTensor z) {
    mistakes.push_back({id, code, std::move(z)});
  };
  const bool plain = !spec.sinks() && spec.gates().empty();
  if (plain) {
    add("softmax_queries", "p = softmax(scores, axis=queries)",
        run.Softmax(Axis::kQueries, true, 1.0));
    add("softmax_heads", "p = softmax(scores, axis=heads)", run.Softmax(Axis::kHeads, true, 1.0));
    if (spec.mask().causal()) {
      add("causal_missing", "p = softmax(scores)  # no mask", run.Softmax(Axis::kKeys, false, 1.0));
    }
  }
  // Scores are no more than scale * q k: another scale is another factor.
  const bool one_scale = n.layout.q.equal() && !spec.has_position_bias() && !spec.has_softcap();
  if (plain && one_scale) {
    const double scale = n.layout.scale[0], width = spec.d_model();
    add("scale_none", "scores = q @ k.T", run.Softmax(Axis::kKeys, true, 1.0 / scale));
    add("scale_sqrt_width", "scores = q @ k.T / sqrt(D)",
        run.Softmax(Axis::kKeys, true, 1.0 / (scale * std::sqrt(width))));
    add("scale_twice", "q = q * scale; scores = q @ k.T * scale",
        run.Softmax(Axis::kKeys, true, scale));
  }
  if (!n.layout.z.equal()) return mistakes;
  const int64_t heads = run.heads(), tokens = run.tokens(), width = n.layout.z.widths[0];
  add("reshape_merge", "z = z.reshape(T, H * dv)  # z is [H, T, dv]",
      run.Moved([&](int64_t i, int64_t r, int64_t f) {
        const auto at =
            IndexOf({heads, tokens, width}, OffsetOf({tokens, heads, width}, {i, r, f}));
        return n.z.at(at[1], at[0], at[2]);
      }));
  add("heads_reversed", "z = concat(z[::-1])",
      run.Moved([&](int64_t i, int64_t r, int64_t f) { return n.z.at(i, heads - 1 - r, f); }));
  add("concat_features", "z = stack(z, axis=last).reshape(T, H * dv)",
      run.Moved([&](int64_t i, int64_t r, int64_t f) {
        const int64_t column = r * width + f;
        return n.z.at(i, column % heads, column / heads);
      }));
  return mistakes;
}

// Largest difference in what the exercise shows of z.
double Difference(const HeadTensor& a, const HeadTensor& b, int64_t tokens) {
  double largest = 0.0;
  for (int64_t r = 0; r < std::min(kShownHeads, a.columns.heads()); ++r) {
    for (int64_t f = 0; f < std::min(kShownFeatures, a.columns.widths[static_cast<size_t>(r)]);
         ++f) {
      for (int64_t i = 0; i < tokens; ++i) {
        largest = std::max(largest, std::fabs(a.at(i, r, f) - b.at(i, r, f)));
      }
    }
  }
  return largest;
}

// Those that show, each unlike every other; no two can be confused.
std::vector<Mistake> Distinct(std::vector<Mistake> mistakes, const Stages& n) {
  std::vector<Mistake> distinct;
  for (Mistake& mistake : mistakes) {
    bool alone = Difference(mistake.z, n.z, n.queries[0]) > kDistinct;
    for (const Mistake& other : distinct) {
      alone = alone && Difference(mistake.z, other.z, n.queries[0]) > kDistinct;
    }
    if (alone) distinct.push_back(std::move(mistake));
  }
  return distinct;
}

std::string Figures(const Stages& n, const HeadTensor& theirs) {
  std::string text;
  for (int64_t r = 0; r < std::min(kShownHeads, n.layout.heads()); ++r) {
    const int64_t g = n.layout.kv_head(r);
    const int64_t shown = std::min(kShownFeatures, n.layout.z.widths[static_cast<size_t>(r)]);
    const auto pairs = [&](const std::vector<std::vector<double>>& values) {
      return [&n, &values, r](int64_t i, int64_t j) { return n.Pair(values[0], 0, r, i, j); };
    };
    const auto heads = [](const HeadTensor& tensor, int64_t head) {
      return [&tensor, head](int64_t i, int64_t f) { return tensor.at(i, head, f); };
    };
    absl::StrAppend(&text, "head ", n.layout.head_ids[static_cast<size_t>(r)], ", features 0 to ",
                    shown - 1, "\n",
                    Beside({MatrixBlock("scores", n.queries[0], n.keys[0], pairs(n.scores)),
                            MatrixBlock("right p", n.queries[0], n.keys[0], pairs(n.p)),
                            MatrixBlock("v", n.keys[0], shown, heads(n.v, g)),
                            MatrixBlock("right z", n.queries[0], shown, heads(n.z, r)),
                            MatrixBlock("their z", n.queries[0], shown, heads(theirs, r))}));
  }
  return text;
}

}  // namespace

absl::StatusOr<Exercise> MakeDebuggingExercise(ExerciseSource* source) {
  const v1::AttentionInput input = source->Input(1, kTokens);
  CLIENT_ASSIGN_OR_RETURN(const Stages n, RunStages(source->client, source->layer, input, false));
  std::vector<Mistake> mistakes = Mistakes(source->layer.spec(), n);
  source->Shuffle(&mistakes);
  mistakes = Distinct(std::move(mistakes), n);
  if (mistakes.size() < 2) {
    return absl::UnimplementedError(
        "kind: debugging needs two mistakes that show on the layer; was fewer (one head?)");
  }
  mistakes.resize(std::min(kChoices, mistakes.size()));
  const size_t chosen = static_cast<size_t>(source->Below(static_cast<int64_t>(mistakes.size())));
  const Mistake& theirs = mistakes[chosen];
  std::vector<int64_t> heads;
  for (int64_t r = 0; r < n.layout.heads(); ++r) heads.push_back(r);
  CLIENT_ASSIGN_OR_RETURN(
      const double effect,
      EffectOfReplacing(*source, input, heads,
                        std::vector<float>(theirs.z.values.begin(), theirs.z.values.end())));
  Exercise exercise = source->Start("debugging");
  exercise.question =
      absl::StrCat("On ", CleanText(source->title), ", ", kTokens,
                   " tokens. Somebody's code has the right q, k and v, but its y is off by ",
                   absl::StrFormat("%.0f %%", 100.0 * effect), " (relative L2).\n",
                   Figures(n, theirs.z), "Which line is in their code?\n");
  for (size_t i = 0; i < mistakes.size(); ++i) {
    const Mistake& mistake = mistakes[i];
    const int64_t last = n.queries[0] - 1;
    exercise.choices.push_back(
        {mistake.code, i == chosen,
         i == chosen
             ? absl::StrCat("this line (", mistake.id, ") gives their numbers")
             : absl::StrFormat("that (%s) would give %.4f at the last token of the first head's "
                               "feature 0; theirs is %.4f",
                               mistake.id, mistake.z.at(last, 0, 0), theirs.z.at(last, 0, 0))});
  }
  absl::StrAppend(&exercise.question, LetteredChoices(exercise.choices));
  exercise.answer_form = "one letter";
  exercise.worked = absl::StrCat(exercise.Expected(), ": ", theirs.code, " (", theirs.id,
                                 ") gives exactly their z. None of the other lines does.\n");
  return exercise;
}

}  // namespace headwise::client
