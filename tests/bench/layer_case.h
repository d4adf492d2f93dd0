// SPDX-License-Identifier: Apache-2.0
// A random layer with its input in an engine of its own, ready to be timed and checked.
#ifndef HEADWISE_TESTS_BENCH_LAYER_CASE_H_
#define HEADWISE_TESTS_BENCH_LAYER_CASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/engine.h"
#include "tests/bench/bench.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise::bench {

struct LayerCase {
  TestLayer layer;
  LayerSpec spec;  // resolved
  DType dtype = DType::kF32;
  std::vector<int64_t> lengths;
  std::unique_ptr<TestInput> input;
  std::unique_ptr<Engine> engine;

  // 2 a multiply-add; scores and weights as dense as they are.
  double flops() const {
    const double d = static_cast<double>(spec.d_model);
    double sum = 0.0;
    for (const int64_t length : lengths) {
      const double t = static_cast<double>(length);
      sum += 8.0 * t * d * d + 4.0 * t * t * d;
    }
    return sum;
  }
};

std::unique_ptr<LayerCase> MakeCase(const Settings& settings, DType dtype, LayerSpec spec,
                                    std::vector<int64_t> lengths, int threads = 0);
std::unique_ptr<LayerCase> MakeCase(const Settings& settings, DType dtype,
                                    const AttentionShape& shape, int threads = 0);

ForwardResult Forward(LayerCase* c, uint32_t outputs = kOutputY);

// Error of y against the reference: dot products of D terms, several in a row.
double Tolerance(DType dtype);

// 64 rows of the last sequence, all heads, against the reference; "" where they agree.
std::string CheckLayer(LayerCase* c);

}  // namespace headwise::bench

#endif  // HEADWISE_TESTS_BENCH_LAYER_CASE_H_
