// SPDX-License-Identifier: Apache-2.0
#include "core/batch/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/rules.h"

namespace headwise {
namespace {

bool IsActivation(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Lengths of a packed [rows, width] or dense [B, T, width] tensor.
absl::StatusOr<std::vector<int64_t>> Lengths(absl::string_view field, const TensorView& tensor,
                                             int64_t width, std::vector<int64_t> given) {
  if (!IsActivation(tensor.dtype)) {
    return Invalid(field, "dtype must be F32, BF16 or F16", DTypeName(tensor.dtype));
  }
  const size_t rank = tensor.shape.size();
  if ((rank != 2 && rank != 3) || !NumElements(tensor.shape).has_value()) {
    return Invalid(field, "shape must be [N, D] or [B, T, D]", ShapeToString(tensor.shape));
  }
  if (tensor.shape.back() != width) {
    return Invalid(field, absl::StrCat("width must be ", width), absl::StrCat(tensor.shape.back()));
  }
  if (rank == 3) {
    std::vector<int64_t> dense(static_cast<size_t>(tensor.dim(0)), tensor.dim(1));
    if (!given.empty() && given != dense) {
      return Invalid(absl::StrCat(field, " lengths"),
                     "must be absent or equal T for a [B, T, D] tensor", ShapeToString(given));
    }
    return dense;
  }
  if (given.empty()) return std::vector<int64_t>{tensor.dim(0)};
  int64_t sum = 0;
  for (const int64_t length : given) {
    if (length < 0 || length > tensor.dim(0)) {
      return Invalid(absl::StrCat(field, " lengths"),
                     absl::StrCat("each must be in [0, ", tensor.dim(0), "]"),
                     absl::StrCat(length));
    }
    sum += length;
  }
  if (sum != tensor.dim(0)) {
    return Invalid(absl::StrCat(field, " lengths"),
                   absl::StrCat("must sum to ", tensor.dim(0), ", the rows of ", field),
                   absl::StrCat(sum));
  }
  return given;
}

absl::Status ReadLengths(const LayerSpec& spec, const AttentionInput& input, int64_t max_sequences,
                         ValidInput* valid) {
  auto queries = Lengths("x", input.x, spec.d_model, input.lengths);
  if (!queries.ok()) return queries.status();
  valid->queries = *std::move(queries);
  valid->x = input.x;
  if (static_cast<int64_t>(valid->queries.size()) > max_sequences) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "lengths: at most ", max_sequences, " sequences a request; was ", valid->queries.size()));
  }
  if (!input.memory.has_value()) {
    if (spec.d_memory != spec.d_model) {
      return Invalid("memory",
                     absl::StrCat("must be given: the layer's keys and values take width ",
                                  spec.d_memory, ", x has ", spec.d_model),
                     "absent");
    }
    if (!input.memory_lengths.empty()) {
      return Invalid("memory_lengths", "must be absent without a memory",
                     ShapeToString(input.memory_lengths));
    }
    valid->memory = valid->x;
    valid->keys = valid->queries;
    return absl::OkStatus();
  }
  auto keys = Lengths("memory", *input.memory, spec.d_memory, input.memory_lengths);
  if (!keys.ok()) return keys.status();
  if (keys->size() != valid->queries.size()) {
    return Invalid(
        "memory_lengths",
        absl::StrCat("must have one entry for each of the ", valid->queries.size(), " sequences"),
        absl::StrCat(keys->size()));
  }
  valid->keys = *std::move(keys);
  valid->memory = *input.memory;
  valid->has_memory = true;
  return absl::OkStatus();
}

absl::Status ReadOrder(const LayerSpec& spec, const AttentionInput& input, ValidInput* valid) {
  valid->causal =
      input.causal == CausalMode::kLayer ? spec.mask.causal : input.causal != CausalMode::kNone;
  valid->bottom_right = input.causal == CausalMode::kBottomRight;
  const bool own_window = input.causal != CausalMode::kNone && valid->causal == spec.mask.causal;
  if (own_window && spec.mask.window.has_value()) valid->window = *spec.mask.window;
  if (input.window.has_value()) {
    const int64_t least = valid->causal ? 1 : 0;
    if (*input.window < least) {
      return Invalid("window",
                     valid->causal ? "a causal window counts the query's own token and must be >= 1"
                                   : "must be >= 0",
                     absl::StrCat(*input.window));
    }
    constexpr int64_t kWidest = std::numeric_limits<uint32_t>::max();
    if (*input.window > kWidest) {
      return Invalid("window", absl::StrCat("must be at most ", kWidest),
                     absl::StrCat(*input.window));
    }
    valid->window = *input.window;
  }
  if (!valid->causal || input.causal != CausalMode::kLayer) return absl::OkStatus();
  for (size_t s = 0; s < valid->queries.size(); ++s) {
    if (valid->queries[s] != valid->keys[s]) {
      return Invalid(
          "causal", "alignment must be named (TOP_LEFT or BOTTOM_RIGHT) where T and S differ",
          absl::StrCat("T ", valid->queries[s], ", S ", valid->keys[s], " in sequence ", s));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadPositions(absl::string_view field, const std::optional<TensorView>& tensor,
                           int64_t rows, std::vector<int64_t>* positions) {
  if (!tensor.has_value()) return absl::OkStatus();
  if (tensor->shape.size() != 1 || tensor->dim(0) != rows) {
    return Invalid(field, absl::StrCat("shape must be [", rows, "]"), ShapeToString(tensor->shape));
  }
  auto values = ToIntegers(*tensor, field);
  if (!values.ok()) return values.status();
  // Beyond 2^31 an angle in f64 would no longer be right to the last digit of f32.
  constexpr int64_t kFarthest = int64_t{1} << 31;
  for (const int64_t value : *values) {
    if (value > kFarthest || value < -kFarthest) {
      return Invalid(field, "each must be within 2^31 of 0", absl::StrCat(value));
    }
  }
  *positions = *std::move(values);
  return absl::OkStatus();
}

absl::Status ReadAllPositions(const AttentionInput& input, ValidInput* valid) {
  absl::Status status =
      ReadPositions("positions", input.positions, valid->query_rows, &valid->positions);
  if (!status.ok()) return status;
  if (!valid->has_memory) {
    if (input.memory_positions.has_value()) {
      return Invalid("memory_positions", "must be absent without a memory", "given");
    }
    valid->key_positions = valid->positions;
    return absl::OkStatus();
  }
  return ReadPositions("memory_positions", input.memory_positions, valid->key_rows,
                       &valid->key_positions);
}

// Elements of the forms, and whether two forms of equal count would mean the same.
struct MaskCounts {
  int64_t key = 0, pair = 0, head = 0;
  bool key_is_pair = true;  // every sequence has T = 1, or nothing to mask
  bool pair_is_head = true;
};

MaskCounts CountForms(const LayerSpec& spec, const ValidInput& valid) {
  MaskCounts counts;
  for (size_t s = 0; s < valid.queries.size(); ++s) {
    const int64_t pairs = valid.queries[s] * valid.keys[s];
    counts.key += valid.keys[s];
    counts.pair += pairs;
    counts.head += spec.heads * pairs;
    if (valid.queries[s] != 1 && valid.keys[s] != 0) counts.key_is_pair = false;
    if (spec.heads != 1 && pairs != 0) counts.pair_is_head = false;
  }
  return counts;
}

absl::StatusOr<MaskForm> FindForm(const MaskCounts& counts, const MaskInput& mask) {
  const int64_t count = mask.tensor.elements();
  const std::pair<MaskForm, int64_t> forms[] = {
      {MaskForm::kKey, counts.key}, {MaskForm::kPair, counts.pair}, {MaskForm::kHead, counts.head}};
  std::vector<MaskForm> fits;
  for (const auto& [form, elements] : forms) {
    if (elements == count && (mask.form == MaskForm::kByCount || mask.form == form)) {
      fits.push_back(form);
    }
  }
  if (fits.empty()) {
    return Invalid("mask",
                   absl::StrCat("must have ", counts.key, " (key), ", counts.pair, " (pair) or ",
                                counts.head, " (head) elements, as its form says"),
                   absl::StrCat(count));
  }
  for (size_t i = 1; i < fits.size(); ++i) {
    const bool same = fits[i] == MaskForm::kPair ? counts.key_is_pair : counts.pair_is_head;
    if (!same) {
      return Invalid("mask", "form must be named where the element count fits two",
                     absl::StrCat(count));
    }
  }
  return fits.front();
}

absl::Status ReadBooleans(const MaskInput& mask, ValidInput* valid) {
  if (mask.tensor.dtype != DType::kBool && mask.tensor.dtype != DType::kU8) {
    return Invalid("mask", "dtype must be BOOL for KEEP and DROP", DTypeName(mask.tensor.dtype));
  }
  const auto* bytes = static_cast<const uint8_t*>(mask.tensor.data);
  const int64_t count = mask.tensor.elements();
  const auto* bad = std::find_if(bytes, bytes + count, [](uint8_t b) { return b > 1; });
  if (bad != bytes + count) {
    return Invalid("mask", absl::StrCat("element ", bad - bytes, " must be 0 or 1"),
                   absl::StrCat(static_cast<int>(*bad)));
  }
  valid->keep = bytes;
  valid->keep_is_drop = mask.kind == MaskKind::kDrop;
  return absl::OkStatus();
}

absl::Status ReadAdditive(const MaskInput& mask, ValidInput* valid) {
  if (!IsActivation(mask.tensor.dtype)) {
    return Invalid("mask", "dtype must be F32, BF16 or F16 for ADDITIVE",
                   DTypeName(mask.tensor.dtype));
  }
  const bool in_place = mask.tensor.dtype == DType::kF32 &&
                        reinterpret_cast<uintptr_t>(mask.tensor.data) % alignof(float) == 0;
  if (!in_place) {
    auto floats = ToFloats(mask.tensor, "mask");
    if (!floats.ok()) return floats.status();
    valid->additive_copy = *std::move(floats);
  }
  valid->additive =
      in_place ? static_cast<const float*>(mask.tensor.data) : valid->additive_copy.data();
  const int64_t count = mask.tensor.elements();
  for (int64_t i = 0; i < count; ++i) {
    const float value = valid->additive[i];
    if (std::isnan(value) || value == std::numeric_limits<float>::infinity()) {
      return Invalid("mask", absl::StrCat("element ", i, " must be finite or -inf"),
                     std::isnan(value) ? "NaN" : "+inf");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMask(const LayerSpec& spec, const AttentionInput& input, ValidInput* valid) {
  if (!input.mask.has_value()) return absl::OkStatus();
  const MaskInput& mask = *input.mask;
  if (mask.kind == MaskKind::kUnspecified) {
    return Invalid("mask", "kind must be KEEP, DROP or ADDITIVE", "unspecified");
  }
  auto form = FindForm(CountForms(spec, *valid), mask);
  if (!form.ok()) return form.status();
  valid->mask_form = *form;
  return mask.kind == MaskKind::kAdditive ? ReadAdditive(mask, valid) : ReadBooleans(mask, valid);
}

}  // namespace

absl::StatusOr<ValidInput> ValidateInput(const LayerSpec& spec, const AttentionInput& input,
                                         int64_t max_sequences) {
  ValidInput valid;
  absl::Status status = ReadLengths(spec, input, max_sequences, &valid);
  if (!status.ok()) return status;
  valid.query_rows = std::accumulate(valid.queries.begin(), valid.queries.end(), int64_t{0});
  valid.key_rows = std::accumulate(valid.keys.begin(), valid.keys.end(), int64_t{0});
  status = ReadOrder(spec, input, &valid);
  if (status.ok()) status = ReadAllPositions(input, &valid);
  if (status.ok()) status = ReadMask(spec, input, &valid);
  if (!status.ok()) return status;
  return valid;
}

int64_t OutputBytes(const LayerSpec& spec, const ValidInput& input, uint32_t outputs) {
  double pairs = 0.0;
  for (size_t s = 0; s < input.queries.size(); ++s) {
    pairs += static_cast<double>(input.queries[s]) * static_cast<double>(input.keys[s]);
  }
  const double n = static_cast<double>(input.query_rows);
  const double m = static_cast<double>(input.key_rows);
  const double h = static_cast<double>(spec.heads);
  double floats = 0.0;
  if (outputs & kOutputY) floats += n * static_cast<double>(spec.d_out);
  if (outputs & kOutputZ) floats += n * static_cast<double>(spec.z_width());
  if (outputs & kOutputQ) floats += n * static_cast<double>(spec.q_width());
  if (outputs & kOutputK) floats += m * static_cast<double>(spec.k_width());
  if (outputs & kOutputV) floats += m * static_cast<double>(spec.v_width());
  if (outputs & kOutputP) floats += h * pairs;
  if (outputs & kOutputScores) floats += h * pairs;
  if (outputs & kOutputContributions) floats += n * h * static_cast<double>(spec.d_out);
  constexpr double kMost = 4.0e18;
  return static_cast<int64_t>(std::min(kMost, 4.0 * floats));
}

double EstimateWork(const LayerSpec& spec, const ValidInput& input) {
  constexpr double kSoftmax = 32.0;
  const double n = static_cast<double>(input.query_rows);
  const double m = static_cast<double>(input.key_rows);
  const int64_t q = spec.q_width() + spec.q_statistic_rows();
  const int64_t kv = spec.k_width() + spec.v_width() + spec.k_statistic_rows();
  double work = n * static_cast<double>(spec.d_model * q) +
                m * static_cast<double>(spec.d_memory * kv) +
                n * static_cast<double>(spec.z_width() * spec.d_out);
  const double per_pair = static_cast<double>(spec.q_width() + spec.z_width()) +
                          kSoftmax * static_cast<double>(spec.heads);
  for (size_t s = 0; s < input.queries.size(); ++s) {
    const int64_t band = input.window < 0 ? input.keys[s] : 2 * input.window + 1;
    const double visible = static_cast<double>(std::min(input.keys[s], band));
    work += static_cast<double>(input.queries[s]) * visible * per_pair * (input.causal ? 0.5 : 1.0);
  }
  return work;
}

}  // namespace headwise
