// SPDX-License-Identifier: Apache-2.0
// Dense row-major tensors: a view of somebody's bytes, and an owned one.
#ifndef HEADWISE_CORE_BASE_TENSOR_H_
#define HEADWISE_CORE_BASE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/dtype.h"

namespace headwise {

using Shape = std::vector<int64_t>;

// Product of the axes; nullopt if an axis is negative or the product exceeds 2^62.
std::optional<int64_t> NumElements(absl::Span<const int64_t> shape);

// "[3, 4]".
std::string ShapeToString(absl::Span<const int64_t> shape);

// Offset of element (row, column) in a row-major matrix, in elements; 64-bit throughout.
constexpr int64_t RowOffset(int64_t row, int64_t stride, int64_t column = 0) {
  return row * stride + column;
}

// A view: does not own `data`. Copyable, as thread-safe as the bytes that it shows. The bytes need
// no alignment.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  const void* data = nullptr;

  int64_t elements() const;  // 0 if the shape is not valid
  size_t bytes() const { return static_cast<size_t>(elements()) * DTypeBytes(dtype); }
  int64_t dim(size_t axis) const { return shape[axis]; }
};

// An owned tensor.
struct OwnedTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<uint8_t> data;

  TensorView view() const { return {dtype, shape, data.data()}; }
};

// Converts a float tensor (F32, BF16, F16, F64) to F32, element by element; F64 rounds to nearest.
// `out` has view.elements() elements. Returns INVALID_ARGUMENT naming `field` for another dtype.
absl::Status ConvertToFloat(const TensorView& view, absl::string_view field, float* out);
absl::StatusOr<std::vector<float>> ToFloats(const TensorView& view, absl::string_view field);

// Converts a float tensor to F64, exactly.
absl::StatusOr<std::vector<double>> ToDoubles(const TensorView& view, absl::string_view field);

// Converts I32 or I64 to int64. Returns INVALID_ARGUMENT naming `field` for another dtype.
absl::StatusOr<std::vector<int64_t>> ToIntegers(const TensorView& view, absl::string_view field);

// An owned F32 tensor of `shape` holding `values`.
OwnedTensor FloatTensor(Shape shape, absl::Span<const float> values);

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_TENSOR_H_
