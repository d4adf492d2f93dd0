// SPDX-License-Identifier: Apache-2.0
#include "core/base/tensor.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headwise {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 62;

template <typename T>
T LoadAt(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + static_cast<size_t>(index) * sizeof(T),
              sizeof(T));
  return value;
}

// out[i] = convert(element i of type Stored).
template <typename Stored, typename Out, typename Convert>
void ConvertAll(const TensorView& view, Out* out, Convert convert) {
  const int64_t count = view.elements();
  for (int64_t i = 0; i < count; ++i) out[i] = convert(LoadAt<Stored>(view.data, i));
}

template <typename Out>
absl::Status ConvertFloats(const TensorView& view, absl::string_view field, Out* out) {
  const auto cast = [](auto value) { return static_cast<Out>(value); };
  switch (view.dtype) {
    case DType::kF32:
      ConvertAll<float>(view, out, cast);
      return absl::OkStatus();
    case DType::kF64:
      ConvertAll<double>(view, out, cast);
      return absl::OkStatus();
    case DType::kBF16:
      ConvertAll<uint16_t>(view, out,
                           [](uint16_t bits) { return static_cast<Out>(Bf16ToFloat(bits)); });
      return absl::OkStatus();
    case DType::kF16:
      ConvertAll<uint16_t>(view, out,
                           [](uint16_t bits) { return static_cast<Out>(F16ToFloat(bits)); });
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": dtype must be F32, BF16, F16 or F64; was ", DTypeName(view.dtype)));
  }
}

}  // namespace

std::optional<int64_t> NumElements(absl::Span<const int64_t> shape) {
  bool empty = false;
  for (const int64_t axis : shape) {
    if (axis < 0) return std::nullopt;
    empty |= axis == 0;
  }
  if (empty) return 0;
  int64_t product = 1;
  for (const int64_t axis : shape) {
    if (axis > kMaxElements / product) return std::nullopt;
    product *= axis;
  }
  return product;
}

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int64_t TensorView::elements() const { return NumElements(shape).value_or(0); }

absl::Status ConvertToFloat(const TensorView& view, absl::string_view field, float* out) {
  if (view.dtype == DType::kF32) {
    if (view.elements() > 0) std::memcpy(out, view.data, view.bytes());
    return absl::OkStatus();
  }
  return ConvertFloats(view, field, out);
}

absl::StatusOr<std::vector<float>> ToFloats(const TensorView& view, absl::string_view field) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  if (absl::Status status = ConvertToFloat(view, field, values.data()); !status.ok()) return status;
  return values;
}

absl::StatusOr<std::vector<double>> ToDoubles(const TensorView& view, absl::string_view field) {
  std::vector<double> values(static_cast<size_t>(view.elements()));
  if (absl::Status status = ConvertFloats(view, field, values.data()); !status.ok()) return status;
  return values;
}

absl::StatusOr<std::vector<int64_t>> ToIntegers(const TensorView& view, absl::string_view field) {
  std::vector<int64_t> values(static_cast<size_t>(view.elements()));
  const auto widen = [](auto value) { return static_cast<int64_t>(value); };
  if (view.dtype == DType::kI32) {
    ConvertAll<int32_t>(view, values.data(), widen);
  } else if (view.dtype == DType::kI64) {
    ConvertAll<int64_t>(view, values.data(), widen);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": dtype must be I32 or I64; was ", DTypeName(view.dtype)));
  }
  return values;
}

OwnedTensor FloatTensor(Shape shape, absl::Span<const float> values) {
  OwnedTensor tensor;
  tensor.dtype = DType::kF32;
  tensor.shape = std::move(shape);
  tensor.data.resize(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

}  // namespace headwise
