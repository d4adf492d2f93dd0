// SPDX-License-Identifier: Apache-2.0
#include "client/learn/exercise.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/status.h"

namespace headwise::client {
namespace {

using Maker = absl::StatusOr<Exercise> (*)(ExerciseSource*);

struct Kind {
  absl::string_view name;
  Maker make;
};
constexpr Kind kKinds[] = {
    {"shape", MakeShapeExercise},
    {"calculation", MakeCalculationExercise},
    {"cost", MakeCostExercise},
    {"interpretation", MakeInterpretationExercise},
    {"permutation", MakePermutationExercise},
    {"debugging", MakeDebuggingExercise},
};

constexpr uint32_t kNarrow = 16;  // features

// Whole numbers -1 … 2: what can be multiplied in the head.
std::vector<float> SmallNumbers(std::mt19937* random, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((*random)() % 4) - 1.0f);
  }
  return values;
}

}  // namespace

const std::vector<absl::string_view>& ExerciseKinds() {
  static const auto* names = [] {
    auto* list = new std::vector<absl::string_view>;
    for (const Kind& kind : kKinds) list->push_back(kind.name);
    return list;
  }();
  return *names;
}

int64_t ExerciseSource::Below(int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint32_t>(bound));
}

int64_t ExerciseSource::Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }

v1::AttentionInput ExerciseSource::Input(int64_t batch, int64_t tokens) {
  const auto numbers = [&](uint32_t width) {
    // Sums over many features grow: smaller numbers keep the weights from all being 0 or 1.
    const float unit = width > kNarrow ? 0.01f : 0.1f;
    std::vector<float> values;
    for (int64_t i = 0; i < batch * tokens * width; ++i) {
      values.push_back(static_cast<float>(Between(-10, 10)) * unit);
    }
    return values;
  };
  const v1::LayerSpec& spec = layer.spec();
  const uint32_t b = static_cast<uint32_t>(batch), t = static_cast<uint32_t>(tokens);
  v1::AttentionInput input;
  *input.mutable_x() = WireFloats({b * t, spec.d_model()}, numbers(spec.d_model()));
  for (int64_t i = 0; i < batch; ++i) input.add_lengths(t);
  if (spec.d_memory() != spec.d_model()) {
    *input.mutable_memory() = WireFloats({b * t, spec.d_memory()}, numbers(spec.d_memory()));
    for (int64_t i = 0; i < batch; ++i) input.add_memory_lengths(t);
  }
  return input;
}

Exercise ExerciseSource::Start(const std::string& kind) const {
  Exercise exercise;
  exercise.kind = kind;
  exercise.layer = title;
  exercise.seed = seed;
  return exercise;
}

std::string LetteredChoices(const std::vector<Choice>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    absl::StrAppend(&text, "  ", std::string(1, static_cast<char>('a' + i)), ") ", choices[i].text,
                    "\n");
  }
  return text;
}

absl::StatusOr<double> EffectOfReplacing(const ExerciseSource& source,
                                         const v1::AttentionInput& input,
                                         const std::vector<int64_t>& places,
                                         const std::vector<float>& z) {
  const HeadLayout layout = source.layout();
  v1::AblateRequest request;
  request.set_layer(source.layer.name());
  *request.mutable_input() = input;
  v1::Intervention* replace = request.add_ablations()->add_interventions();
  replace->set_kind(v1::Intervention::REPLACE);
  uint32_t width = 0;
  for (const int64_t place : places) {
    replace->add_heads(static_cast<uint32_t>(layout.head_ids[static_cast<size_t>(place)]));
    width += static_cast<uint32_t>(layout.z.widths[static_cast<size_t>(place)]);
  }
  *replace->mutable_tensor() = WireFloats({static_cast<uint32_t>(z.size()) / width, width}, z);
  CLIENT_ASSIGN_OR_RETURN(const v1::AblateResult result, source.client->Ablate(request));
  if (!result.ablations().empty()) return result.ablations(0).effect().relative_l2();
  return absl::InternalError("answer: must hold the ablation; was without");
}

absl::StatusOr<std::unique_ptr<TemporaryLayer>> UploadSmallLayer(Client* client, uint32_t seed) {
  std::mt19937 random(seed * 2654435761u + 1u);
  const int64_t heads = 2 + static_cast<int64_t>(random() % 2), width = 2 * heads;
  v1::LayerSpec spec;
  spec.set_d_model(static_cast<uint32_t>(width));
  spec.set_heads(static_cast<uint32_t>(heads));
  spec.set_orientation(v1::OUT_IN);
  spec.mutable_mask()->set_causal(true);
  v1::TensorNames* names = spec.mutable_tensors();
  names->set_q("q");
  names->set_k("k");
  names->set_v("v");
  names->set_o("o");
  std::map<std::string, OwnedTensor> tensors;
  for (const char* name : {"q", "k", "v", "o"}) {
    tensors[name] = FloatTensor({width, width}, SmallNumbers(&random, width * width));
  }
  return TemporaryLayer::Upload(client, spec, TensorMap(std::move(tensors)));
}

absl::StatusOr<Exercise> MakeExercise(Client* client, absl::string_view kind,
                                      const std::string& name, uint32_t seed) {
  const auto found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& entry) { return entry.name == kind; });
  if (found == std::end(kKinds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind: must be one of the exercises' kinds; was ", kind));
  }
  std::unique_ptr<TemporaryLayer> small;
  if (name.empty()) {
    CLIENT_ASSIGN_OR_RETURN(small, UploadSmallLayer(client, seed));
  }
  ExerciseSource source;
  source.client = client;
  CLIENT_ASSIGN_OR_RETURN(source.layer, DescribeLayer(client, small ? small->name() : name));
  source.title = small ? "a small layer" : name;
  source.seed = seed;
  source.random.seed(seed);
  return found->make(&source);
}

}  // namespace headwise::client
