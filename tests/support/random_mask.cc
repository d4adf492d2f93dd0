// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_mask.h"

#include <limits>
#include <random>

#include "tests/support/test_layer.h"

namespace headwise {

std::vector<uint8_t> RandomBooleans(int64_t count, uint32_t seed, uint32_t percent) {
  std::mt19937 generator(seed);
  std::vector<uint8_t> values(static_cast<size_t>(count));
  for (uint8_t& value : values) value = generator() % 100 < percent ? 1 : 0;
  return values;
}

std::vector<float> RandomAdditive(int64_t count, uint32_t seed) {
  std::vector<float> values = RandomFloats(count, seed, 3.0f);
  for (size_t i = seed % 3; i < values.size(); i += 3) {
    values[i] = -std::numeric_limits<float>::infinity();
  }
  return values;
}

int64_t MaskElements(MaskForm form, int64_t heads, const std::vector<int64_t>& queries,
                     const std::vector<int64_t>& keys) {
  int64_t count = 0;
  for (size_t b = 0; b < queries.size(); ++b) {
    if (form == MaskForm::kKey) count += keys[b];
    if (form == MaskForm::kPair) count += queries[b] * keys[b];
    if (form == MaskForm::kHead) count += heads * queries[b] * keys[b];
  }
  return count;
}

}  // namespace headwise
