// SPDX-License-Identifier: Apache-2.0
// Tensor files of the command line: .npy (one tensor) and .safetensors (FILE:NAME picks one).
#ifndef HEADWISE_CORE_FORMAT_TENSOR_FILE_H_
#define HEADWISE_CORE_FORMAT_TENSOR_FILE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/tensor.h"

namespace headwise {

// "FILE" or "FILE:NAME", split at the last ".safetensors:".
struct TensorFileName {
  std::string file;
  std::string name;  // empty: the file's only tensor, else "x", else an error
};
TensorFileName ParseTensorFileName(absl::string_view text);

// Reads the tensor that `text` names. NOT_FOUND (file, tensor), DATA_LOSS (malformed),
// UNIMPLEMENTED (dtype), INVALID_ARGUMENT (a file of another kind).
absl::StatusOr<OwnedTensor> ReadTensorFile(absl::string_view text);

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_TENSOR_FILE_H_
