// SPDX-License-Identifier: Apache-2.0
#include "core/base/dtype.h"

#include <array>
#include <bit>

namespace headwise {
namespace {

struct DTypeRow {
  DType dtype;
  size_t bytes;
  absl::string_view name;
};

constexpr std::array<DTypeRow, 9> kDTypes = {{
    {DType::kF32, 4, "F32"},
    {DType::kBF16, 2, "BF16"},
    {DType::kF16, 2, "F16"},
    {DType::kF64, 8, "F64"},
    {DType::kI32, 4, "I32"},
    {DType::kI64, 8, "I64"},
    {DType::kBool, 1, "BOOL"},
    {DType::kU8, 1, "U8"},
    {DType::kI8, 1, "I8"},
}};

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnum());

const DTypeRow& RowOf(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

size_t DTypeBytes(DType dtype) { return RowOf(dtype).bytes; }

absl::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

bool IsInteger(DType dtype) {
  return dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kU8 || dtype == DType::kI8;
}

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in F32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: rounding could carry it into an infinity
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7fffu + odd) >> 16);
}

uint16_t FloatToF16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }

}  // namespace headwise
