// SPDX-License-Identifier: Apache-2.0
// Random user masks for tests.
#ifndef HEADWISE_TESTS_SUPPORT_RANDOM_MASK_H_
#define HEADWISE_TESTS_SUPPORT_RANDOM_MASK_H_

#include <cstdint>
#include <vector>

#include "core/request.h"

namespace headwise {

// Ones with a chance of `percent`.
std::vector<uint8_t> RandomBooleans(int64_t count, uint32_t seed, uint32_t percent);

// Finite numbers with some -inf among them.
std::vector<float> RandomAdditive(int64_t count, uint32_t seed);

int64_t MaskElements(MaskForm form, int64_t heads, const std::vector<int64_t>& queries,
                     const std::vector<int64_t>& keys);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_RANDOM_MASK_H_
