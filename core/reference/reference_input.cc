// SPDX-License-Identifier: Apache-2.0
#include "core/reference/reference_input.h"

#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

absl::Status CheckCount(absl::string_view field, int64_t actual, int64_t expected) {
  if (actual == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must have ", expected, " elements; was ", actual));
}

// 0, 1, 2, … in each sequence.
std::vector<int64_t> Counting(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> positions;
  for (const int64_t length : lengths) {
    for (int64_t t = 0; t < length; ++t) positions.push_back(t);
  }
  return positions;
}

std::vector<int64_t> QueryLengths(const AttentionInput& input) {
  if (!input.lengths.empty()) return input.lengths;
  if (input.x.shape.size() == 2) return {input.x.shape[0]};
  if (input.x.shape.size() == 3) {
    return std::vector<int64_t>(static_cast<size_t>(input.x.shape[0]), input.x.shape[1]);
  }
  return {};
}

absl::Status ReadTokens(const LayerSpec& spec, const AttentionInput& input, ReferenceInput* out) {
  absl::StatusOr<std::vector<double>> x = ToDoubles(input.x, "x");
  if (!x.ok()) return x.status();
  out->x = *std::move(x);
  out->lengths = QueryLengths(input);
  out->memory_lengths = out->lengths;
  out->memory = out->x;
  absl::Status status = CheckCount("x", input.x.elements(), Sum(out->lengths) * spec.d_model);
  if (!input.memory.has_value() || !status.ok()) return status;
  absl::StatusOr<std::vector<double>> memory = ToDoubles(*input.memory, "memory");
  if (!memory.ok()) return memory.status();
  out->memory = *std::move(memory);
  out->own_memory = true;
  out->memory_lengths = input.memory_lengths;
  if (out->memory_lengths.empty() && !input.memory->shape.empty()) {
    out->memory_lengths.assign(1, input.memory->shape[0]);
  }
  status = CheckCount("memory", input.memory->elements(), Sum(out->memory_lengths) * spec.d_memory);
  status.Update(CheckCount("memory_lengths", static_cast<int64_t>(out->memory_lengths.size()),
                           static_cast<int64_t>(out->lengths.size())));
  return status;
}

absl::Status ReadPositions(const AttentionInput& input, ReferenceInput* out) {
  out->positions = Counting(out->lengths);
  out->memory_positions = Counting(out->memory_lengths);
  if (input.positions.has_value()) {
    absl::StatusOr<std::vector<int64_t>> positions = ToIntegers(*input.positions, "positions");
    if (!positions.ok()) return positions.status();
    out->positions = *std::move(positions);
    if (!input.memory.has_value()) out->memory_positions = out->positions;
  }
  if (input.memory_positions.has_value()) {
    absl::StatusOr<std::vector<int64_t>> positions =
        ToIntegers(*input.memory_positions, "memory_positions");
    if (!positions.ok()) return positions.status();
    out->memory_positions = *std::move(positions);
  }
  absl::Status status =
      CheckCount("positions", static_cast<int64_t>(out->positions.size()), Sum(out->lengths));
  status.Update(CheckCount("memory_positions", static_cast<int64_t>(out->memory_positions.size()),
                           Sum(out->memory_lengths)));
  return status;
}

// The layer's own causal setting and window, or what the request puts in their place.
absl::Status ReadCausal(const LayerSpec& spec, const AttentionInput& input, ReferenceInput* out) {
  out->causal = input.causal == CausalMode::kTopLeft || input.causal == CausalMode::kBottomRight;
  out->bottom_right = input.causal == CausalMode::kBottomRight;
  out->window = spec.mask.window;
  if (input.causal == CausalMode::kLayer) out->causal = spec.mask.causal;
  // A window counts keys differently with and without a causal mask, so it goes with its own kind;
  // NONE takes any window away.
  if (out->causal != spec.mask.causal || input.causal == CausalMode::kNone) out->window.reset();
  if (input.window.has_value()) out->window = input.window;
  const bool anchored = input.causal != CausalMode::kLayer;
  if (out->causal && !anchored && out->lengths != out->memory_lengths) {
    return absl::InvalidArgumentError(
        "causal: must name an alignment where queries and keys differ in number; was the layer's");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> ReadMaskValues(const MaskInput& mask) {
  if (mask.kind == MaskKind::kAdditive) return ToDoubles(mask.tensor, "mask");
  if (mask.tensor.dtype != DType::kBool && mask.tensor.dtype != DType::kU8) {
    return absl::InvalidArgumentError(
        absl::StrCat("mask: dtype must be BOOL or U8; was ", DTypeName(mask.tensor.dtype)));
  }
  const auto* bytes = static_cast<const uint8_t*>(mask.tensor.data);
  return std::vector<double>(bytes, bytes + mask.tensor.elements());
}

absl::Status ReadMask(const LayerSpec& spec, const AttentionInput& input, ReferenceInput* out) {
  if (!input.mask.has_value()) return absl::OkStatus();
  absl::StatusOr<std::vector<double>> values = ReadMaskValues(*input.mask);
  if (!values.ok()) return values.status();
  out->mask = *std::move(values);
  out->mask_kind = input.mask->kind;
  out->mask_form = input.mask->form;
  int64_t pairs = 0;
  for (size_t b = 0; b < out->lengths.size(); ++b)
    pairs += out->lengths[b] * out->memory_lengths[b];
  const int64_t keys = Sum(out->memory_lengths);
  const int64_t count = static_cast<int64_t>(out->mask.size());
  if (out->mask_form == MaskForm::kByCount) {
    out->mask_form = count == keys    ? MaskForm::kKey
                     : count == pairs ? MaskForm::kPair
                                      : MaskForm::kHead;
  }
  const int64_t expected = out->mask_form == MaskForm::kKey    ? keys
                           : out->mask_form == MaskForm::kPair ? pairs
                                                               : spec.heads * pairs;
  return CheckCount("mask", count, expected);
}

}  // namespace

absl::StatusOr<ReferenceInput> ReadReferenceInput(const LayerSpec& spec,
                                                  const AttentionInput& input) {
  ReferenceInput out;
  absl::Status status = ReadTokens(spec, input, &out);
  if (status.ok()) status = ReadPositions(input, &out);
  if (status.ok()) status = ReadCausal(spec, input, &out);
  if (status.ok()) status = ReadMask(spec, input, &out);
  if (!status.ok()) return status;
  return out;
}

}  // namespace headwise
