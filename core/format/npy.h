// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files: a magic text, a Python dictionary, one array.
#ifndef HEADWISE_CORE_FORMAT_NPY_H_
#define HEADWISE_CORE_FORMAT_NPY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/tensor.h"

namespace headwise {

// Reads a .npy file of version 1, 2 or 3 into row-major little-endian order, whatever its own. f2,
// f4 and f8 become F16, F32, F64; b1 BOOL; u1 U8; i1, i2, i4 and u2 I32; i8, u4 and u8 I64.
// NOT_FOUND; UNIMPLEMENTED (any other dtype, by name); DATA_LOSS (malformed, cut, trailing bytes, a
// u8 value beyond 2^63 - 1).
absl::StatusOr<OwnedTensor> ReadNpy(const std::string& path);

// The same for a file's bytes.
absl::StatusOr<OwnedTensor> ParseNpy(absl::string_view bytes);

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_NPY_H_
