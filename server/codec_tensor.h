// SPDX-License-Identifier: Apache-2.0
// Tensors between the wire and core. Decoded tensors are views of the message's bytes.
#ifndef HEADWISE_SERVER_CODEC_TENSOR_H_
#define HEADWISE_SERVER_CODEC_TENSOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/dtype.h"
#include "core/base/tensor.h"
#include "core/request.h"
#include "headwise/v1/tensor.pb.h"

namespace headwise {

inline constexpr int kMaxAxes = 8;

// A view of `tensor`'s bytes, which must outlive it. INVALID_ARGUMENT, under `field`: no dtype or
// one that is no tensor's, more than 8 axes, a shape that overflows, a byte count that isn't the
// shape's. Nothing is allocated for the elements.
absl::StatusOr<TensorView> DecodeTensor(const v1::Tensor& tensor, absl::string_view field);

v1::DType EncodeDType(DType dtype);

// Moves the bytes; `with_data` false leaves them out, for a listing.
void EncodeOutput(NamedOutput&& output, bool with_data, v1::NamedTensor* wire);

// uint32 fields to int64 and back.
template <typename Repeated>
std::vector<int64_t> ToInt64s(const Repeated& values) {
  return std::vector<int64_t>(values.begin(), values.end());
}
template <typename Repeated>
void SetInt64s(const std::vector<int64_t>& values, Repeated* out) {
  out->Clear();
  out->Reserve(static_cast<int>(values.size()));
  for (const int64_t value : values) out->Add(static_cast<uint32_t>(value));
}

}  // namespace headwise

#endif  // HEADWISE_SERVER_CODEC_TENSOR_H_
