// SPDX-License-Identifier: Apache-2.0
#include "server/codec_oip.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

using inference::ModelInferRequest;
using InputTensor = ModelInferRequest::InferInputTensor;

constexpr char kPlatform[] = "headwise_attention_layer";

struct Datatype {
  const char* name;
  DType dtype;
  inference::DataType config;
};
constexpr Datatype kDatatypes[] = {
    {"FP32", DType::kF32, inference::TYPE_FP32},   {"BF16", DType::kBF16, inference::TYPE_BF16},
    {"FP16", DType::kF16, inference::TYPE_FP16},   {"FP64", DType::kF64, inference::TYPE_FP64},
    {"INT32", DType::kI32, inference::TYPE_INT32}, {"INT64", DType::kI64, inference::TYPE_INT64}};

const char* NameOf(DType dtype) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.dtype == dtype) return datatype.name;
  }
  return "";
}

struct OutputName {
  const char* name;
  OutputBit bit;
};
constexpr OutputName kOutputs[] = {{"y", kOutputY}, {"z", kOutputZ},
                                   {"q", kOutputQ}, {"k", kOutputK},
                                   {"v", kOutputV}, {"contributions", kOutputContributions},
                                   {"p", kOutputP}, {"scores", kOutputScores}};

// The bytes of a typed tensor; nullopt where its kind of contents doesn't fit the datatype. BF16
// and FP16 have no typed form.
std::optional<absl::string_view> TypedBytes(const InputTensor& input, DType dtype) {
  const auto bytes = [](const auto& values) {
    return absl::string_view(reinterpret_cast<const char*>(values.data()),
                             static_cast<size_t>(values.size()) * sizeof(*values.data()));
  };
  switch (dtype) {
    case DType::kF32:
      return bytes(input.contents().fp32_contents());
    case DType::kF64:
      return bytes(input.contents().fp64_contents());
    case DType::kI32:
      return bytes(input.contents().int_contents());
    case DType::kI64:
      return bytes(input.contents().int64_contents());
    default:
      return std::nullopt;
  }
}

// The view of the `index`-th input.
absl::StatusOr<TensorView> DecodeTensor(const ModelInferRequest& request, int index) {
  const InputTensor& input = request.inputs(index);
  const auto datatype = std::find_if(std::begin(kDatatypes), std::end(kDatatypes),
                                     [&](const Datatype& d) { return input.datatype() == d.name; });
  if (datatype == std::end(kDatatypes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        input.name(), ".datatype: must be FP32, BF16, FP16, FP64, INT32 or INT64; was ",
        input.datatype()));
  }
  if (input.shape_size() > kMaxAxes) {
    return absl::InvalidArgumentError(absl::StrCat(input.name(), ".shape: must have at most ",
                                                   kMaxAxes, " axes; was ", input.shape_size()));
  }
  const Shape shape(input.shape().begin(), input.shape().end());
  std::optional<absl::string_view> bytes;
  if (request.raw_input_contents_size() == 0) {
    bytes = TypedBytes(input, datatype->dtype);
  } else if (!input.has_contents()) {
    bytes = request.raw_input_contents(index);
  }
  if (!bytes.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(input.name(),
                     ".contents: must be raw for all inputs or typed for all, and "
                     "raw for BF16 and FP16; was neither"));
  }
  const std::optional<int64_t> elements = NumElements(shape);
  const auto width = static_cast<int64_t>(DTypeBytes(datatype->dtype));
  if (!elements.has_value() || *elements > (int64_t{1} << 62) / width ||
      static_cast<uint64_t>(*elements * width) != bytes->size()) {
    return absl::InvalidArgumentError(absl::StrCat(input.name(), ".contents: must be the bytes of ",
                                                   ShapeToString(shape), " of ", datatype->name,
                                                   "; was ", bytes->size(), " bytes"));
  }
  return TensorView{datatype->dtype, shape, bytes->data()};
}

// Puts one input where it belongs.
absl::Status Place(const std::string& name, TensorView view, AttentionInput* input, bool* has_x) {
  const auto twice = [&name] {
    return absl::InvalidArgumentError(
        absl::StrCat("inputs: must name each tensor once; was ", name, " twice"));
  };
  const auto place_lengths = [&](std::vector<int64_t>* lengths) -> absl::Status {
    if (!lengths->empty()) return twice();
    absl::StatusOr<std::vector<int64_t>> values = ToIntegers(view, name);
    if (values.ok()) *lengths = *std::move(values);
    return values.status();
  };
  if (name == "x") {
    if (*has_x) return twice();
    *has_x = true;
    input->x = std::move(view);
    return absl::OkStatus();
  }
  if (name == "memory") {
    if (input->memory.has_value()) return twice();
    input->memory = std::move(view);
    return absl::OkStatus();
  }
  if (name == "lengths") return place_lengths(&input->lengths);
  if (name == "memory_lengths") return place_lengths(&input->memory_lengths);
  return absl::InvalidArgumentError(
      absl::StrCat("inputs: must be x, lengths, memory or memory_lengths; was ", name));
}

absl::StatusOr<uint32_t> DecodeOutputs(const ModelInferRequest& request) {
  uint32_t bits = 0;
  for (const ModelInferRequest::InferRequestedOutputTensor& output : request.outputs()) {
    const auto found = std::find_if(std::begin(kOutputs), std::end(kOutputs),
                                    [&](const OutputName& o) { return output.name() == o.name; });
    if (found == std::end(kOutputs)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "outputs: must be y, z, q, k, v, contributions, p or scores; was ", output.name()));
    }
    bits |= found->bit;
  }
  return bits == 0 ? static_cast<uint32_t>(kOutputY) : bits;
}

// [B, T, …] where x is [B, T, D] and the output's first axis is x's tokens.
Shape SplitTokens(const NamedOutput& output, const ModelInferRequest& request) {
  const auto x = std::find_if(request.inputs().begin(), request.inputs().end(),
                              [](const InputTensor& input) { return input.name() == "x"; });
  const bool dense = x->shape_size() == 3 && !output.axes.empty() && output.axes[0] == "token" &&
                     output.shape[0] == x->shape(0) * x->shape(1);
  if (!dense) return output.shape;
  Shape shape = {x->shape(0), x->shape(1)};
  shape.insert(shape.end(), output.shape.begin() + 1, output.shape.end());
  return shape;
}

void AddOutput(const std::string& name, DType dtype, const Shape& shape, std::string data,
               inference::ModelInferResponse* response) {
  inference::ModelInferResponse::InferOutputTensor* output = response->add_outputs();
  output->set_name(name);
  output->set_datatype(NameOf(dtype));
  output->mutable_shape()->Assign(shape.begin(), shape.end());
  response->add_raw_output_contents(std::move(data));
}

// p.0, p.1, … as one tensor.
void AddPerSequence(const std::string& name, std::vector<NamedOutput>* parts,
                    inference::ModelInferResponse* response) {
  const bool equal = std::all_of(parts->begin(), parts->end(), [&](const NamedOutput& part) {
    return part.shape == parts->front().shape;
  });
  size_t bytes = 0;
  for (const NamedOutput& part : *parts) bytes += part.data.size();
  Shape shape = {static_cast<int64_t>(equal ? parts->size() : bytes / sizeof(float))};
  if (equal) {
    shape.insert(shape.end(), parts->front().shape.begin(), parts->front().shape.end());
  }
  std::string data = std::move(parts->front().data);
  data.reserve(bytes);
  for (size_t i = 1; i < parts->size(); ++i) data += (*parts)[i].data;
  AddOutput(name, DType::kF32, shape, std::move(data), response);
}

// What the metadata and the configuration say of a tensor. -1: any.
struct Described {
  const char* name;
  DType dtype;
  Shape shape;
  bool optional;
};

std::vector<Described> InputsOf(const LayerSpec& spec) {
  const int64_t d_memory = spec.d_memory == 0 ? spec.d_model : spec.d_memory;
  return {{"x", DType::kF32, {-1, spec.d_model}, false},
          {"lengths", DType::kI64, {-1}, true},
          {"memory", DType::kF32, {-1, d_memory}, true},
          {"memory_lengths", DType::kI64, {-1}, true}};
}

std::vector<Described> OutputsOf(const LayerSpec& spec) {
  const int64_t d_out = spec.d_out == 0 ? spec.d_model : spec.d_out;
  const auto per_head = [&](int64_t heads, int64_t width, int64_t total) {
    return spec.equal_widths() ? Shape{-1, heads, width} : Shape{-1, total};
  };
  const int64_t dk = spec.dk.front(), dv = spec.dv.front();
  return {{"y", DType::kF32, {-1, d_out}, false},
          {"z", DType::kF32, per_head(spec.heads, dv, spec.z_width()), false},
          {"q", DType::kF32, per_head(spec.heads, dk, spec.q_width()), false},
          {"k", DType::kF32, per_head(spec.kv_heads, dk, spec.k_width()), false},
          {"v", DType::kF32, per_head(spec.kv_heads, dv, spec.v_width()), false},
          {"contributions", DType::kF32, {-1, spec.heads, d_out}, false},
          {"p", DType::kF32, {-1, spec.heads, -1, -1}, false},
          {"scores", DType::kF32, {-1, spec.heads, -1, -1}, false}};
}

inference::DataType ConfigType(DType dtype) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.dtype == dtype) return datatype.config;
  }
  return inference::TYPE_INVALID;
}

}  // namespace

absl::StatusOr<ForwardRequest> DecodeInfer(const ModelInferRequest& request) {
  if (request.raw_input_contents_size() != 0 &&
      request.raw_input_contents_size() != request.inputs_size()) {
    return absl::InvalidArgumentError(absl::StrCat("raw_input_contents: must be one an input, ",
                                                   request.inputs_size(), "; was ",
                                                   request.raw_input_contents_size()));
  }
  ForwardRequest result;
  result.layer = request.model_name();
  bool has_x = false;
  for (int i = 0; i < request.inputs_size(); ++i) {
    absl::StatusOr<TensorView> view = DecodeTensor(request, i);
    if (!view.ok()) return view.status();
    if (absl::Status placed =
            Place(request.inputs(i).name(), *std::move(view), &result.input, &has_x);
        !placed.ok()) {
      return placed;
    }
  }
  if (!has_x) return absl::InvalidArgumentError("x: must be given; was absent");
  const DType dtype = result.input.x.dtype;
  result.y_dtype = dtype == DType::kBF16 || dtype == DType::kF16 ? dtype : DType::kF32;
  const absl::StatusOr<uint32_t> outputs = DecodeOutputs(request);
  if (!outputs.ok()) return outputs.status();
  result.outputs = *outputs;
  return result;
}

void EncodeInfer(ForwardResult&& result, const ModelInferRequest& request,
                 inference::ModelInferResponse* response) {
  response->set_model_name(request.model_name());
  response->set_model_version(absl::StrCat(result.pass.layer_version));
  response->set_id(request.id());
  std::vector<NamedOutput> p, scores;
  for (NamedOutput& output : result.outputs) {
    if (absl::StartsWith(output.name, "p.")) {
      p.push_back(std::move(output));
    } else if (absl::StartsWith(output.name, "scores.")) {
      scores.push_back(std::move(output));
    } else {
      AddOutput(output.name, output.dtype, SplitTokens(output, request), std::move(output.data),
                response);
    }
  }
  if (!p.empty()) AddPerSequence("p", &p, response);
  if (!scores.empty()) AddPerSequence("scores", &scores, response);
}

void EncodeMetadata(const LayerInfo& info, inference::ModelMetadataResponse* response) {
  response->set_name(info.name);
  response->add_versions(absl::StrCat(info.version));
  response->set_platform(kPlatform);
  const auto add = [](const Described& from, auto* tensor) {
    tensor->set_name(from.name);
    tensor->set_datatype(NameOf(from.dtype));
    tensor->mutable_shape()->Assign(from.shape.begin(), from.shape.end());
  };
  for (const Described& input : InputsOf(info.spec)) add(input, response->add_inputs());
  for (const Described& output : OutputsOf(info.spec)) add(output, response->add_outputs());
}

void EncodeConfig(const LayerInfo& info, inference::ModelConfig* config) {
  config->set_name(info.name);
  config->set_platform(kPlatform);
  config->set_backend("headwise");
  for (const Described& from : InputsOf(info.spec)) {
    inference::ModelInput* input = config->add_input();
    input->set_name(from.name);
    input->set_data_type(ConfigType(from.dtype));
    input->mutable_dims()->Assign(from.shape.begin(), from.shape.end());
    input->set_optional(from.optional);
  }
  for (const Described& from : OutputsOf(info.spec)) {
    inference::ModelOutput* output = config->add_output();
    output->set_name(from.name);
    output->set_data_type(ConfigType(from.dtype));
    output->mutable_dims()->Assign(from.shape.begin(), from.shape.end());
  }
}

absl::Status CheckModelVersion(const LayerInfo& info, absl::string_view version) {
  if (version.empty() || version == absl::StrCat(info.version)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("version: must be the loaded one of layer \"", info.name,
                                          "\", ", info.version, "; was ", version));
}

}  // namespace headwise
