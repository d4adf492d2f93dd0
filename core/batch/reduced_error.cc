// SPDX-License-Identifier: Apache-2.0
#include "core/batch/reduced_error.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/normal.h"

namespace headwise {
namespace {

constexpr char kProbe[] =
    "2 sequences of 24 and 40 tokens, x independent N(0, 1), seed 1; the layer's own mask";
const std::vector<int64_t> kLengths = {24, 40};
constexpr int64_t kTokens = 64;

std::vector<float> ProbeMemory(const LayerSpec& spec) {
  if (spec.d_memory == spec.d_model) return {};
  return NormalNumbers<float>(kTokens * spec.d_memory, 2);
}

}  // namespace

ReducedErrorProbe::ReducedErrorProbe(std::shared_ptr<AttentionLayer> exact, Executor* executor)
    : exact_(std::move(exact)),
      executor_(executor),
      x_(NormalNumbers<float>(kTokens * exact_->spec().d_model, 1)),
      memory_(ProbeMemory(exact_->spec())) {
  exact_->KeepProjectionsOf(x_.data(), memory_.empty() ? x_.data() : memory_.data(), kTokens);
}

void ReducedErrorProbe::Take(WeightMatrix matrix, int64_t first, int64_t count, const float* rows) {
  if (matrix == WeightMatrix::kO && z_.empty() && status_.ok()) {
    auto z = Run(exact_, kOutputZ);
    if (z.ok()) {
      z_ = *std::move(z);
      exact_->KeepOutputsOf(z_.data(), kTokens);
    } else {
      status_ = z.status();
    }
  }
  if (status_.ok()) exact_->PackRows(matrix, first, count, rows);
}

absl::StatusOr<std::vector<float>> ReducedErrorProbe::Run(
    std::shared_ptr<const AttentionLayer> layer, uint32_t output) const {
  const LayerSpec& spec = layer->spec();
  AttentionInput input;
  input.x = {DType::kF32, {kTokens, spec.d_model}, x_.data()};
  input.lengths = kLengths;
  if (!memory_.empty()) {
    input.memory = TensorView{DType::kF32, {kTokens, spec.d_memory}, memory_.data()};
    input.memory_lengths = kLengths;
  }
  auto valid = ValidateInput(spec, input, static_cast<int64_t>(kLengths.size()));
  if (!valid.ok()) return valid.status();
  auto item = std::make_unique<WorkItem>();
  item->layer = std::move(layer);
  item->input = *std::move(valid);
  item->outputs = output;
  absl::StatusOr<std::vector<float>> values = absl::UnknownError("probe: no answer");
  item->done = [&values](absl::StatusOr<WorkResult> result) {
    if (!result.ok()) {
      values = result.status();
      return;
    }
    const NamedOutput& tensor = result->outputs.front();
    values = std::vector<float>(tensor.floats(), tensor.floats() + *NumElements(tensor.shape));
  };
  executor_->RunAlone(std::move(item));
  return values;
}

absl::StatusOr<ReducedError> ReducedErrorProbe::Compare(
    std::shared_ptr<const AttentionLayer> reduced) {
  if (!status_.ok()) return status_;
  auto y = Run(std::move(reduced), kOutputY);
  if (!y.ok()) return y.status();
  auto y_exact = Run(exact_, kOutputY);
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
