// SPDX-License-Identifier: Apache-2.0
// The cases of tests/golden: tiny checkpoints of every family with what their layers answer.
#ifndef HEADWISE_TESTS_SUPPORT_GOLDEN_H_
#define HEADWISE_TESTS_SUPPORT_GOLDEN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace headwise {

// One layer of one case, in one style of config.json.
struct GoldenLayer {
  std::string folder;        // of tests/golden
  std::string config_file;   // "config.json" or "config.old.json"
  std::string id;            // "[PART.]I"
  std::string key;           // of the tensors in expected.safetensors
  nlohmann::json described;  // case.json's entry
};
void PrintTo(const GoldenLayer& layer, std::ostream* out);

// All layers of all cases; where a case has both styles, one after the other. Ends the test program
// if tests/golden can't be read.
std::vector<GoldenLayer> GoldenLayers();

// A name for gtest: letters, digits and underscores.
std::string GoldenName(const GoldenLayer& layer);

// What a layer is given and what it answers.
struct GoldenTensors {
  std::vector<float> x;                 // [N, D]
  std::vector<int64_t> lengths;         // [B]
  std::vector<float> memory;            // [M, d_memory]; empty: none
  std::vector<int64_t> memory_lengths;  // [B]
  std::vector<int64_t> positions;       // [N]; empty: 0..T-1
  std::vector<std::vector<double>> p;   // per sequence [H, T, S]
  std::vector<double> z;                // [N, H dv]
  std::vector<double> y;                // [N, d_out]
};
GoldenTensors ReadGolden(const GoldenLayer& layer);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_GOLDEN_H_
