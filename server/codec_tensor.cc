// SPDX-License-Identifier: Apache-2.0
#include "server/codec_tensor.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace headwise {
namespace {

// Tensors' dtypes have safetensors' names on the wire; INT8 and DTYPE_UNSPECIFIED are none of them.
std::optional<DType> DecodeDType(v1::DType dtype) { return DTypeFromName(v1::DType_Name(dtype)); }

// The enum's name, or its number where it has none.
std::string EnumText(v1::DType dtype) {
  const std::string& name = v1::DType_Name(dtype);
  return name.empty() ? absl::StrCat(static_cast<int>(dtype)) : name;
}

}  // namespace

absl::StatusOr<TensorView> DecodeTensor(const v1::Tensor& tensor, absl::string_view field) {
  const std::optional<DType> dtype = DecodeDType(tensor.dtype());
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".dtype: must be F32, BF16, F16, F64, I32, I64 or BOOL; was ",
                     EnumText(tensor.dtype())));
  }
  if (tensor.shape_size() > kMaxAxes) {
    return absl::InvalidArgumentError(absl::StrFormat("%s.shape: must have at most %d axes; was %d",
                                                      field, kMaxAxes, tensor.shape_size()));
  }
  TensorView view{*dtype, ToInt64s(tensor.shape()), tensor.data().data()};
  const std::optional<int64_t> elements = NumElements(view.shape);
  const int64_t width = static_cast<int64_t>(DTypeBytes(*dtype));
  if (!elements.has_value() || *elements > (int64_t{1} << 62) / width) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s.shape: must not exceed 2^62 bytes of %s; was %s", field,
                        DTypeName(*dtype), ShapeToString(view.shape)));
  }
  if (static_cast<uint64_t>(*elements * width) != tensor.data().size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s.data: must hold %d bytes, which is %s of %s; was %d", field, *elements * width,
        ShapeToString(view.shape), DTypeName(*dtype), tensor.data().size()));
  }
  return view;
}

v1::DType EncodeDType(DType dtype) {
  if (dtype == DType::kI8) return v1::INT8;
  if (dtype == DType::kU8) return v1::BOOL;
  v1::DType wire = v1::DTYPE_UNSPECIFIED;
  v1::DType_Parse(std::string(DTypeName(dtype)), &wire);
  return wire;
}

void EncodeOutput(NamedOutput&& output, bool with_data, v1::NamedTensor* wire) {
  wire->set_name(std::move(output.name));
  wire->set_dtype(EncodeDType(output.dtype));
  SetInt64s(output.shape, wire->mutable_shape());
  for (std::string& axis : output.axes) wire->add_axes(std::move(axis));
  SetInt64s(output.head_ids, wire->mutable_head_ids());
  SetInt64s(output.offsets, wire->mutable_offsets());
  if (with_data) wire->set_data(std::move(output.data));
}

}  // namespace headwise
