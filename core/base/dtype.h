// SPDX-License-Identifier: Apache-2.0
// Element types that Headwise stores, receives and sends. Thread-safe: pure functions.
#ifndef HEADWISE_CORE_BASE_DTYPE_H_
#define HEADWISE_CORE_BASE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace headwise {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kBool, kU8, kI8 };

// Size of one element in bytes.
size_t DTypeBytes(DType dtype);

// The safetensors spelling: "F32", "BF16", "F16", "F64", "I32", "I64", "BOOL", "U8", "I8".
absl::string_view DTypeName(DType dtype);

// The inverse of DTypeName; nullopt for any other text.
std::optional<DType> DTypeFromName(absl::string_view name);

bool IsFloat(DType dtype);    // F32, BF16, F16, F64
bool IsInteger(DType dtype);  // I32, I64, U8, I8

// Exact widenings, subnormals, infinities and NaN payloads' NaN-ness included.
float Bf16ToFloat(uint16_t bits);
float F16ToFloat(uint16_t bits);
// Rounds to nearest, ties to even; NaN stays NaN, overflow becomes infinity.
uint16_t FloatToBf16(float value);
uint16_t FloatToF16(float value);

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_DTYPE_H_
