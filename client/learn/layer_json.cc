// SPDX-License-Identifier: Apache-2.0
#include "client/learn/layer_json.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/learn/layer_numbers.h"
#include "client/report.h"
#include "client/status.h"
#include "client/upload.h"
#include "core/format/strict_json.h"

namespace headwise::client {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxAxes = 3;

absl::Status Invalid(absl::string_view field, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule, "; was ", was));
}

// Appends the numbers of nested lists and checks that they are as `shape` says, from `axis` on.
absl::Status Flatten(const Json& json, const std::string& field, const Shape& shape, size_t axis,
                     std::vector<float>* out) {
  if (axis == shape.size()) {
    const double number = json.is_number() ? json.get<double>() : NAN;
    const float value = static_cast<float>(number);
    if (!std::isfinite(value)) return Invalid(field, "must hold finite numbers", json.dump());
    out->push_back(value);
    return absl::OkStatus();
  }
  if (!json.is_array()) return Invalid(field, "must be lists of equal depth", json.dump());
  if (static_cast<int64_t>(json.size()) != shape[axis]) {
    return Invalid(field,
                   absl::StrCat("lists of one level must be equally long (", shape[axis], ")"),
                   absl::StrCat(json.size()));
  }
  for (const Json& entry : json) {
    CLIENT_RETURN_IF_ERROR(Flatten(entry, field, shape, axis + 1, out));
  }
  return absl::OkStatus();
}

// Nested lists as a tensor; the first entry of each level gives the shape.
absl::StatusOr<OwnedTensor> ReadTensor(const Json& json, const std::string& field) {
  Shape shape;
  for (const Json* level = &json; level->is_array(); level = &level->front()) {
    shape.push_back(static_cast<int64_t>(level->size()));
    if (level->empty()) break;
  }
  if (shape.empty() || shape.size() > kMaxAxes) {
    return Invalid(field, absl::StrCat("must be lists of numbers, at most ", kMaxAxes, " deep"),
                   shape.empty() ? json.dump() : absl::StrCat(shape.size(), " deep"));
  }
  std::vector<float> values;
  CLIENT_RETURN_IF_ERROR(Flatten(json, field, shape, 0, &values));
  return FloatTensor(std::move(shape), values);
}

absl::StatusOr<v1::Tensor> ReadInput(const Json& json, const std::string& field) {
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor tensor, ReadTensor(json, field));
  CLIENT_ASSIGN_OR_RETURN(const std::vector<float> values, ToFloats(tensor.view(), field));
  if (tensor.shape.size() < 2) {
    return Invalid(field, "must be one list of features a token",
                   absl::StrCat(tensor.shape.size(), " deep"));
  }
  return WireFloats({tensor.shape.begin(), tensor.shape.end()}, values);
}

// The field of TensorNames that a role is called by; null for another name.
const google::protobuf::FieldDescriptor* RoleField(const std::string& role) {
  const auto* field = v1::TensorNames::descriptor()->FindFieldByName(role);
  return field == nullptr || field->is_repeated() ? nullptr : field;
}

absl::Status ReadWeights(const Json& json, TypedLayer* layer) {
  if (!json.is_object()) return Invalid("weights", "must be an object", json.dump());
  v1::TensorNames* names = layer->spec.mutable_tensors();
  for (const auto& [role, numbers] : json.items()) {
    const auto* field = RoleField(role);
    if (field == nullptr) {
      return Invalid("weights", "must be named q, k, v, o, q_bias, … (fields of TensorNames)",
                     CleanText(role));
    }
    names->GetReflection()->SetString(names, field, role);
    CLIENT_ASSIGN_OR_RETURN(layer->weights[role],
                            ReadTensor(numbers, absl::StrCat("weights.", role)));
  }
  return absl::OkStatus();
}

absl::Status ReadLengths(const Json& json, v1::AttentionInput* input) {
  for (const Json& length : json) {
    if (!length.is_number_unsigned() || length.get<uint64_t>() > UINT32_MAX) {
      return Invalid("lengths", "must be whole numbers, 0 or more", length.dump());
    }
    input->add_lengths(length.get<uint32_t>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TypedLayer> ParseTypedLayer(absl::string_view text) {
  CLIENT_ASSIGN_OR_RETURN(const Json json, ParseStrictJson(text, "layer-json"));
  if (!json.is_object()) return Invalid("layer-json", "must be an object", json.type_name());
  for (const auto& [key, value] : json.items()) {
    if (key != "spec" && key != "weights" && key != "x" && key != "lengths" && key != "memory") {
      return Invalid("layer-json", "must hold spec, weights, x, lengths, memory and nothing else",
                     CleanText(key));
    }
  }
  for (const char* key : {"spec", "weights", "x"}) {
    if (!json.contains(key))
      return Invalid("layer-json", "must hold spec, weights and x", absl::StrCat("without ", key));
  }
  TypedLayer layer;
  CLIENT_ASSIGN_OR_RETURN(layer.spec, ParseSpec(json["spec"].dump()));
  if (layer.spec.has_tensors()) {
    return Invalid("spec.tensors", "must be absent, as weights are named by their roles", "given");
  }
  CLIENT_RETURN_IF_ERROR(ReadWeights(json["weights"], &layer));
  CLIENT_ASSIGN_OR_RETURN(*layer.input.mutable_x(), ReadInput(json["x"], "x"));
  if (json.contains("lengths")) {
    CLIENT_RETURN_IF_ERROR(ReadLengths(json["lengths"], &layer.input));
  }
  if (json.contains("memory")) {
    CLIENT_ASSIGN_OR_RETURN(*layer.input.mutable_memory(), ReadInput(json["memory"], "memory"));
  }
  const v1::Tensor& x = layer.input.x();
  if (layer.spec.d_model() == 0) layer.spec.set_d_model(x.shape(x.shape_size() - 1));
  return layer;
}

}  // namespace headwise::client
