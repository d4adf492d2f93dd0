// SPDX-License-Identifier: Apache-2.0
#include "client/tensors.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "core/format/safetensors.h"
#include "core/format/tensor_file.h"

namespace headwise::client {
namespace {

absl::Status WrongDtype(absl::string_view field, absl::string_view rule, DType dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": dtype must be ", rule, "; was ", DTypeName(dtype)));
}

// Tensors' dtypes have safetensors' names on the wire.
absl::StatusOr<v1::DType> WireDType(DType dtype) {
  v1::DType wire = v1::BOOL;
  if (dtype == DType::kU8 || v1::DType_Parse(std::string(DTypeName(dtype)), &wire)) return wire;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor: dtype has no form on the wire; was ", DTypeName(dtype)));
}

std::optional<DType> FileDType(v1::DType dtype) { return DTypeFromName(v1::DType_Name(dtype)); }

absl::StatusOr<v1::Tensor> ToWire(const OwnedTensor& tensor, absl::string_view field) {
  v1::Tensor wire;
  CLIENT_ASSIGN_OR_RETURN(const v1::DType dtype, WireDType(tensor.dtype));
  wire.set_dtype(dtype);
  for (const int64_t axis : tensor.shape) {
    if (axis > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": an axis must be below 2^32; was ", ShapeToString(tensor.shape)));
    }
    wire.add_shape(static_cast<uint32_t>(axis));
  }
  wire.set_data(tensor.data.data(), tensor.data.size());
  return wire;
}

absl::StatusOr<v1::Tensor> FloatsToWire(const OwnedTensor& tensor, absl::string_view field) {
  if (tensor.dtype != DType::kF64) return ToWire(tensor, field);
  CLIENT_ASSIGN_OR_RETURN(const std::vector<float> floats, ToFloats(tensor.view(), field));
  return ToWire(FloatTensor(tensor.shape, floats), field);
}

absl::StatusOr<OwnedTensor> ReadIntegerVector(absl::string_view file, absl::string_view field) {
  CLIENT_ASSIGN_OR_RETURN(OwnedTensor tensor, ReadTensorFile(file));
  if (tensor.dtype != DType::kI32 && tensor.dtype != DType::kI64) {
    return WrongDtype(field, "I32 or I64", tensor.dtype);
  }
  if (tensor.shape.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": shape must have 1 axis; was ", ShapeToString(tensor.shape)));
  }
  return tensor;
}

}  // namespace

absl::StatusOr<v1::Tensor> ReadFloats(absl::string_view file, absl::string_view field) {
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor tensor, ReadTensorFile(file));
  if (!IsFloat(tensor.dtype)) return WrongDtype(field, "F32, BF16, F16 or F64", tensor.dtype);
  return FloatsToWire(tensor, field);
}

absl::StatusOr<v1::Tensor> ReadIds(absl::string_view file, absl::string_view field) {
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor tensor, ReadIntegerVector(file, field));
  return ToWire(tensor, field);
}

absl::StatusOr<v1::Tensor> ReadMask(absl::string_view file) {
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor tensor, ReadTensorFile(file));
  if (IsFloat(tensor.dtype)) return FloatsToWire(tensor, "mask");
  if (tensor.dtype != DType::kBool && tensor.dtype != DType::kU8) {
    return WrongDtype("mask", "BOOL or U8 (keep, drop) or a float (additive)", tensor.dtype);
  }
  return ToWire(tensor, "mask");
}

absl::StatusOr<std::vector<uint32_t>> ReadLengths(absl::string_view file, absl::string_view field) {
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor tensor, ReadIntegerVector(file, field));
  CLIENT_ASSIGN_OR_RETURN(const std::vector<int64_t> values, ToIntegers(tensor.view(), field));
  std::vector<uint32_t> lengths;
  for (const int64_t value : values) {
    if (value < 0 || value > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": a length must be 0 or more and below 2^32; was ", value));
    }
    lengths.push_back(static_cast<uint32_t>(value));
  }
  return lengths;
}

absl::Status CheckBytes(const v1::NamedTensor& tensor) { return ViewOf(tensor).status(); }

absl::StatusOr<TensorView> ViewOf(const v1::NamedTensor& tensor) {
  const std::optional<DType> dtype = FileDType(tensor.dtype());
  const Shape shape(tensor.shape().begin(), tensor.shape().end());
  const std::optional<int64_t> elements = NumElements(shape);
  // An element has at least one byte: the first comparison keeps the product below from
  // overflowing.
  if (!dtype.has_value() || !elements.has_value() ||
      static_cast<uint64_t>(*elements) > tensor.data().size() ||
      static_cast<uint64_t>(*elements) * DTypeBytes(*dtype) != tensor.data().size()) {
    return absl::InternalError(absl::StrCat(
        "answer: ", tensor.name(), " must hold the bytes of ", v1::DType_Name(tensor.dtype()), " ",
        ShapeToString(shape), "; was ", tensor.data().size(), " bytes"));
  }
  return TensorView{*dtype, shape, tensor.data().data()};
}

absl::Status WriteTensors(const std::string& path,
                          const google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors) {
  std::vector<std::pair<std::string, TensorView>> named;
  for (const v1::NamedTensor& tensor : tensors) {
    CLIENT_ASSIGN_OR_RETURN(const TensorView view, ViewOf(tensor));
    named.emplace_back(tensor.name(), view);
  }
  return WriteSafetensors(path, named);
}

}  // namespace headwise::client
