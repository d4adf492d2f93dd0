// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BASE_NORMAL_H_
#define HEADWISE_CORE_BASE_NORMAL_H_

#include <cstdint>
#include <random>
#include <vector>

namespace headwise {

// `count` independent draws of N(0, 1), the same ones for the same seed and type. Thread-safe.
template <typename Number>
std::vector<Number> NormalNumbers(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<Number> normal;
  std::vector<Number> numbers(static_cast<size_t>(count));
  for (Number& number : numbers) number = normal(random);
  return numbers;
}

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_NORMAL_H_
