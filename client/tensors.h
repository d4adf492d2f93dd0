// SPDX-License-Identifier: Apache-2.0
// Tensors between files and the wire.
#ifndef HEADWISE_CLIENT_TENSORS_H_
#define HEADWISE_CLIENT_TENSORS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/tensor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "headwise/v1/tensor.pb.h"

namespace headwise::client {

// Reads a tensor file ("F.npy", "F.safetensors:NAME") for the wire. `field` names the flag in
// errors. Floats: F32, BF16 and F16 as they are, F64 as F32.
absl::StatusOr<v1::Tensor> ReadFloats(absl::string_view file, absl::string_view field);
// I32 or I64, 1-D.
absl::StatusOr<v1::Tensor> ReadIds(absl::string_view file, absl::string_view field);
// A mask: BOOL or U8 (sent as BOOL), or floats; the server knows which go with which kind.
absl::StatusOr<v1::Tensor> ReadMask(absl::string_view file);
// Lengths: I32 or I64, 1-D, each 0 or more.
absl::StatusOr<std::vector<uint32_t>> ReadLengths(absl::string_view file, absl::string_view field);

// INTERNAL if the bytes of an answer's tensor don't match its shape and dtype.
absl::Status CheckBytes(const v1::NamedTensor& tensor);

// A view of an answer's tensor; INTERNAL as CheckBytes. Lives as long as `tensor`.
absl::StatusOr<TensorView> ViewOf(const v1::NamedTensor& tensor);

// Writes the tensors under their names, in order.
absl::Status WriteTensors(const std::string& path,
                          const google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_TENSORS_H_
