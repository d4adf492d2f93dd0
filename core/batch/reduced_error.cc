// SPDX-License-Identifier: Apache-2.0
#include "core/batch/reduced_error.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace headwise {
namespace {

constexpr char kProbe[] =
    "2 sequences of 24 and 40 tokens, x independent N(0, 1), seed 1; the layer's own mask";
const std::vector<int64_t> kLengths = {24, 40};
constexpr int64_t kTokens = 64;

std::vector<float> Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

absl::StatusOr<std::vector<float>> RunProbe(const std::shared_ptr<const AttentionLayer>& layer,
                                            const AttentionInput& input, Executor* executor) {
  auto valid = ValidateInput(layer->spec(), input, static_cast<int64_t>(kLengths.size()));
  if (!valid.ok()) return valid.status();
  auto item = std::make_unique<WorkItem>();
  item->layer = layer;
  item->input = *std::move(valid);
  item->outputs = kOutputY;
  absl::StatusOr<std::vector<float>> y = absl::UnknownError("probe: no answer");
  item->done = [&y](absl::StatusOr<WorkResult> result) {
    if (!result.ok()) {
      y = result.status();
      return;
    }
    const NamedOutput& output = result->outputs.front();
    y = std::vector<float>(output.floats(), output.floats() + *NumElements(output.shape));
  };
  executor->RunAlone(std::move(item));
  return y;
}

}  // namespace

absl::StatusOr<ReducedError> MeasureReducedError(std::shared_ptr<const AttentionLayer> reduced,
                                                 std::shared_ptr<const AttentionLayer> exact,
                                                 Executor* executor) {
  const LayerSpec& spec = reduced->spec();
  const std::vector<float> x = Normal(kTokens * spec.d_model, 1);
  std::vector<float> memory;
  AttentionInput input;
  input.x = {DType::kF32, {kTokens, spec.d_model}, x.data()};
  input.lengths = kLengths;
  if (spec.d_memory != spec.d_model) {
    memory = Normal(kTokens * spec.d_memory, 2);
    input.memory = TensorView{DType::kF32, {kTokens, spec.d_memory}, memory.data()};
    input.memory_lengths = kLengths;
  }
  auto y = RunProbe(reduced, input, executor);
  if (!y.ok()) return y.status();
  auto y_exact = RunProbe(exact, input, executor);
  if (!y_exact.ok()) return y_exact.status();
  double largest = 0.0, largest_error = 0.0, squares = 0.0, error_squares = 0.0;
  for (size_t i = 0; i < y->size(); ++i) {
    const double right = static_cast<double>((*y_exact)[i]);
    const double error = static_cast<double>((*y)[i]) - right;
    largest = std::max(largest, std::fabs(right));
    largest_error = std::max(largest_error, std::fabs(error));
    squares += right * right;
    error_squares += error * error;
  }
  if (largest == 0.0) return ReducedError{kProbe, largest_error, std::sqrt(error_squares)};
  return ReducedError{kProbe, largest_error / largest, std::sqrt(error_squares / squares)};
}

}  // namespace headwise
