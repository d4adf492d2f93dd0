// SPDX-License-Identifier: Apache-2.0
#include "server/codec_input.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

absl::Status NoSuchValue(const char* field, int value) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must be a value that headwise.v1 names; was ", value));
}

absl::StatusOr<MaskInput> DecodeMask(const v1::Mask& mask) {
  MaskInput result;
  switch (mask.kind()) {
    case v1::Mask::KIND_UNSPECIFIED:
      result.kind = MaskKind::kUnspecified;
      break;
    case v1::Mask::KEEP:
      result.kind = MaskKind::kKeep;
      break;
    case v1::Mask::DROP:
      result.kind = MaskKind::kDrop;
      break;
    case v1::Mask::ADDITIVE:
      result.kind = MaskKind::kAdditive;
      break;
    default:
      return NoSuchValue("mask.kind", mask.kind());
  }
  if (result.kind == MaskKind::kUnspecified) {
    return absl::InvalidArgumentError(
        "mask.kind: must be KEEP, DROP or ADDITIVE; was KIND_UNSPECIFIED");
  }
  switch (mask.form()) {
    case v1::Mask::FORM_UNSPECIFIED:
      result.form = MaskForm::kByCount;
      break;
    case v1::Mask::KEY:
      result.form = MaskForm::kKey;
      break;
    case v1::Mask::PAIR:
      result.form = MaskForm::kPair;
      break;
    case v1::Mask::HEAD:
      result.form = MaskForm::kHead;
      break;
    default:
      return NoSuchValue("mask.form", mask.form());
  }
  absl::StatusOr<TensorView> tensor = DecodeTensor(mask.tensor(), "mask.tensor");
  if (!tensor.ok()) return tensor.status();
  result.tensor = *std::move(tensor);
  return result;
}

absl::StatusOr<CausalMode> DecodeCausal(v1::Causal::Alignment causal) {
  switch (causal) {
    case v1::Causal::ALIGNMENT_UNSPECIFIED:
      return CausalMode::kLayer;
    case v1::Causal::NONE:
      return CausalMode::kNone;
    case v1::Causal::TOP_LEFT:
      return CausalMode::kTopLeft;
    case v1::Causal::BOTTOM_RIGHT:
      return CausalMode::kBottomRight;
    default:
      return NoSuchValue("causal", causal);
  }
}

// Decodes an optional tensor into `out`.
absl::Status DecodeOptional(bool given, const v1::Tensor& tensor, const char* field,
                            std::optional<TensorView>* out) {
  if (!given) return absl::OkStatus();
  absl::StatusOr<TensorView> view = DecodeTensor(tensor, field);
  if (view.ok()) *out = *std::move(view);
  return view.status();
}

absl::StatusOr<uint32_t> DecodeOutputs(const google::protobuf::RepeatedField<int>& outputs) {
  uint32_t bits = 0;
  for (const int output : outputs) {
    // The wire numbers Y … CONTRIBUTIONS 1 … 8 in the order of OutputBit.
    if (output < v1::Y || output > v1::CONTRIBUTIONS) return NoSuchValue("outputs", output);
    bits |= 1u << (output - v1::Y);
  }
  return bits == 0 ? static_cast<uint32_t>(kOutputY) : bits;
}
static_assert(kOutputY == 1u && kOutputContributions == 1u << (v1::CONTRIBUTIONS - v1::Y));

}  // namespace

absl::StatusOr<AttentionInput> DecodeInput(const v1::AttentionInput& input) {
  if (!input.has_x()) {
    return absl::InvalidArgumentError("x: must be given; was absent");
  }
  AttentionInput result;
  absl::StatusOr<TensorView> x = DecodeTensor(input.x(), "x");
  if (!x.ok()) return x.status();
  result.x = *std::move(x);
  result.lengths = ToInt64s(input.lengths());
  result.memory_lengths = ToInt64s(input.memory_lengths());
  if (input.has_window()) result.window = input.window();

  const absl::StatusOr<CausalMode> causal = DecodeCausal(input.causal());
  if (!causal.ok()) return causal.status();
  result.causal = *causal;
  if (input.has_mask()) {
    absl::StatusOr<MaskInput> mask = DecodeMask(input.mask());
    if (!mask.ok()) return mask.status();
    result.mask = *std::move(mask);
  }
  for (const absl::Status& status :
       {DecodeOptional(input.has_memory(), input.memory(), "memory", &result.memory),
        DecodeOptional(input.has_positions(), input.positions(), "positions", &result.positions),
        DecodeOptional(input.has_memory_positions(), input.memory_positions(), "memory_positions",
                       &result.memory_positions)}) {
    if (!status.ok()) return status;
  }
  return result;
}

namespace {

absl::StatusOr<DType> DecodeYDType(v1::DType dtype) {
  if (dtype == v1::F32) return DType::kF32;
  if (dtype == v1::BF16) return DType::kBF16;
  if (dtype == v1::F16) return DType::kF16;
  return absl::InvalidArgumentError(absl::StrCat(
      "y_dtype: must be F32, BF16 or F16; was ",
      v1::DType_IsValid(dtype) ? v1::DType_Name(dtype) : absl::StrCat(static_cast<int>(dtype))));
}

}  // namespace

absl::StatusOr<ForwardRequest> DecodeForward(const v1::ForwardRequest& request) {
  ForwardRequest result;
  if (request.y_dtype() != v1::DTYPE_UNSPECIFIED) {
    const absl::StatusOr<DType> y_dtype = DecodeYDType(request.y_dtype());
    if (!y_dtype.ok()) return y_dtype.status();
    result.y_dtype = *y_dtype;
  }
  result.layer = request.layer();
  if (request.has_expected_version()) result.expected_version = request.expected_version();
  absl::StatusOr<AttentionInput> input = DecodeInput(request.input());
  if (!input.ok()) return input.status();
  result.input = *std::move(input);
  const absl::StatusOr<uint32_t> outputs = DecodeOutputs(request.outputs());
  if (!outputs.ok()) return outputs.status();
  result.outputs = *outputs;
  return result;
}

void EncodeForward(ForwardResult&& result, const std::string& request_id,
                   v1::ForwardResponse* response) {
  response->set_layer(std::move(result.pass.layer));
  response->set_layer_version(static_cast<uint32_t>(result.pass.layer_version));
  response->set_request_id(request_id);
  SetInt64s(result.pass.lengths, response->mutable_lengths());
  response->set_batch_requests(static_cast<uint32_t>(result.pass.batch_requests));
  response->set_batch_tokens(static_cast<uint32_t>(result.pass.batch_tokens));
  response->set_queue_us(static_cast<uint32_t>(result.pass.queue_us));
  response->set_compute_us(static_cast<uint32_t>(result.pass.compute_us));
  for (NamedOutput& output : result.outputs) {
    EncodeOutput(std::move(output), /*with_data=*/true, response->add_tensors());
  }
}

}  // namespace headwise
