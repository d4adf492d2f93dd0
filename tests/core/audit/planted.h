// SPDX-License-Identifier: Apache-2.0
// Attention as people write it, right or with a planted mistake, in numbers of their choice. It
// shares nothing with the code that searches mistakes: plain loops over nested vectors.
#ifndef HEADWISE_TESTS_CORE_AUDIT_PLANTED_H_
#define HEADWISE_TESTS_CORE_AUDIT_PLANTED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/test_layer.h"

namespace headwise {

enum class Arithmetic : uint8_t { kF64, kF32, kBf16, kF16, kBf16Sums };

// Rounded to the nearest number with `bits` significant bits, steps no smaller than 2^least.
double RoundBits(double value, int bits, int least);

struct PlantedInput {
  std::vector<int64_t> lengths;
  std::vector<float> x;                 // [N, D]
  std::vector<int64_t> memory_lengths;  // with a memory
  std::vector<float> memory;            // [M, D]; empty: x
  bool bottom_right = false;
  std::vector<uint8_t> keep;  // [M]; empty: no user mask

  bool has_memory() const { return !memory.empty(); }
};

struct Planted {
  std::vector<float> q, k, v, z, y;
  std::vector<std::vector<float>> scores, p;  // per sequence [H, T, S]; empty where they don't fit
};

// What y would be with this mistake ("": none; two with "+"), every operation rounded as
// `arithmetic` says. Heads have equal widths; grouped heads, causal order, windows, RoPE, ALiBi,
// soft-cap, sinks and biases as the spec has them.
Planted Plant(const TestLayer& layer, const PlantedInput& input, const std::string& mistake,
              Arithmetic arithmetic);

// How a query that sees nothing comes out: zeros, an even average, or NaN.
enum class PlantedEmpty : uint8_t { kZeros, kAverage, kNan };
Planted Plant(const TestLayer& layer, const PlantedInput& input, const std::string& mistake,
              Arithmetic arithmetic, PlantedEmpty empty);

}  // namespace headwise

#endif  // HEADWISE_TESTS_CORE_AUDIT_PLANTED_H_
