// SPDX-License-Identifier: Apache-2.0
// From f32 to the reduced numbers that tile products take, and back. Pure and thread-safe.
#ifndef HEADWISE_CORE_KERNEL_QUANTISE_H_
#define HEADWISE_CORE_KERNEL_QUANTISE_H_

#include <cstdint>

namespace headwise {

// Rounds to nearest even, ties included; NaN stays NaN, what is too large becomes infinity.
void ToBf16(const float* in, int64_t count, uint16_t* out);

// The scale of 8-bit numbers q = round(x / scale), |q| <= 127, for values up to `largest`: 0 for
// none above 0, NaN where they aren't finite (a row without numbers has no numbers to give).
float QuantiseScale(float largest);

// Largest |in[i]|; NaN if one is NaN.
float LargestMagnitude(const float* in, int64_t count);

// out[i] = 128 + round(in[i] / scale), ties to even; 128 for a scale of 0 or NaN.
void QuantiseRow(const float* in, float scale, int64_t count, uint8_t* out);

// In place: out[j] = row_scale * column_scales[j] * (sum[j] - 128 * column_sums[j]), where sum[j]
// is the s32 at the same place. Exact 0 where a scale is 0; NaN where row_scale is.
void DequantiseRow(float row_scale, const float* column_scales, const int32_t* column_sums,
                   int64_t count, float* sums);

}  // namespace headwise

#endif  // HEADWISE_CORE_KERNEL_QUANTISE_H_
