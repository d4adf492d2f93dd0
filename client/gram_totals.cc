// SPDX-License-Identifier: Apache-2.0
#include "client/gram_totals.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "client/tensors.h"

namespace headwise::client {
namespace {

constexpr const char* kNames[] = {"gram", "b", "y_sq", "tokens", "z_mean", "z_tokens"};

const v1::NamedTensor* Find(const v1::AblateResult& result, absl::string_view name) {
  for (const v1::NamedTensor& tensor : result.tensors()) {
    if (tensor.name() == name) return &tensor;
  }
  return nullptr;
}

absl::StatusOr<std::vector<double>> Numbers(const v1::NamedTensor& tensor) {
  CLIENT_ASSIGN_OR_RETURN(const TensorView view, ViewOf(tensor));
  if (view.dtype != DType::kI64) return ToDoubles(view, tensor.name());
  CLIENT_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, ToIntegers(view, tensor.name()));
  return std::vector<double>(counts.begin(), counts.end());
}

// Which head each of the features [sum dv] is of, as an index.
std::vector<size_t> HeadOfFeature(const v1::NamedTensor& form, size_t features) {
  std::vector<size_t> heads(features);
  size_t head = 0;
  for (size_t i = 0; i < features; ++i) {
    while (head + 1 < static_cast<size_t>(form.offsets_size()) &&
           form.offsets(static_cast<int>(head) + 1) <= i) {
      ++head;
    }
    heads[i] = head;
  }
  return heads;
}

}  // namespace

absl::Status GramTotals::AddTensor(const v1::NamedTensor& tensor,
                                   const std::vector<double>& weights) {
  CLIENT_ASSIGN_OR_RETURN(const std::vector<double> values, Numbers(tensor));
  if (tensor.shape_size() == 0) {
    return absl::InternalError(absl::StrCat("answer: ", tensor.name(), " must have sequences"));
  }
  const size_t sequences = tensor.shape(0);
  size_t one = 1;
  for (int axis = 1; axis < tensor.shape_size(); ++axis) one *= tensor.shape(axis);
  Sum& sum = sums_[tensor.name()];
  if (sum.values.empty()) {
    sum.form = tensor;
    sum.form.clear_data();
    sum.values.assign(one, 0.0);
  }
  const bool weighted = !weights.empty();
  const std::vector<size_t> heads = weighted ? HeadOfFeature(tensor, one) : std::vector<size_t>();
  const size_t count = sequences == 0 ? 0 : weights.size() / sequences;
  if (sum.values.size() != one || (weighted && (count == 0 || heads.back() >= count))) {
    return absl::InternalError(
        absl::StrCat("answer: ", tensor.name(), " must have one shape for every input"));
  }
  for (size_t s = 0; s < sequences; ++s) {
    for (size_t i = 0; i < one; ++i) {
      const double weight = weighted ? weights[s * count + heads[i]] : 1.0;
      // Selects: a sequence without valid tokens counts nothing.
      if (weight != 0.0) sum.values[i] += weight * values[s * one + i];
    }
  }
  return absl::OkStatus();
}

absl::Status GramTotals::Add(const v1::AblateResult& result) {
  std::vector<double> weights;
  if (const v1::NamedTensor* tokens = Find(result, "z_tokens"); tokens != nullptr) {
    CLIENT_ASSIGN_OR_RETURN(weights, Numbers(*tokens));
  }
  for (const char* name : kNames) {
    const v1::NamedTensor* tensor = Find(result, name);
    if (tensor == nullptr) continue;
    const bool mean = absl::string_view(name) == "z_mean";
    CLIENT_RETURN_IF_ERROR(AddTensor(*tensor, mean ? weights : std::vector<double>()));
  }
  return absl::OkStatus();
}

void GramTotals::AppendTo(v1::AblateResult* result) const {
  for (const char* name : kNames) {
    const auto found = sums_.find(name);
    if (found == sums_.end()) continue;
    std::vector<double> values = found->second.values;
    v1::NamedTensor* tensor = result->add_tensors();
    *tensor = found->second.form;
    if (tensor->shape_size() == 1) {
      tensor->set_shape(0, 1);
    } else {
      tensor->mutable_shape()->erase(tensor->shape().begin());
      tensor->mutable_axes()->erase(tensor->axes().begin());
    }
    if (absl::string_view(name) == "z_mean") {
      const std::vector<size_t> heads = HeadOfFeature(*tensor, values.size());
      const std::vector<double>& tokens = sums_.at("z_tokens").values;
      for (size_t i = 0; i < values.size(); ++i) {
        if (tokens[heads[i]] > 0.0) values[i] /= tokens[heads[i]];
      }
    }
    if (tensor->dtype() == v1::I64) {
      const std::vector<int64_t> counts(values.begin(), values.end());
      tensor->set_data(counts.data(), counts.size() * sizeof(int64_t));
    } else {
      tensor->set_data(values.data(), values.size() * sizeof(double));
    }
  }
}

}  // namespace headwise::client
