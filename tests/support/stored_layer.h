// SPDX-License-Identifier: Apache-2.0
// Layers and expected values of tests/golden and tests/data, read without the checkpoint loader.
#ifndef HEADWISE_TESTS_SUPPORT_STORED_LAYER_H_
#define HEADWISE_TESTS_SUPPORT_STORED_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/format/safetensors.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {

// Each ends the test program if the file or tensor isn't there.
std::vector<float> ReadFloats(const SafetensorsFile& file, const std::string& name);
std::vector<double> ReadDoubles(const SafetensorsFile& file, const std::string& name);
std::vector<int64_t> ReadIntegers(const SafetensorsFile& file, const std::string& name);
std::unique_ptr<SafetensorsFile> OpenSafetensors(const std::string& relative);

// BERT: `prefix`.self.{query,key,value}, `prefix`.output.dense, all with biases.
TestLayer ReadBertLayer(const SafetensorsFile& file, const std::string& prefix,
                        const LayerSpec& spec);

// LLaMA: `prefix`.{q,k,v,o}_proj without biases.
TestLayer ReadLlamaLayer(const SafetensorsFile& file, const std::string& prefix,
                         const LayerSpec& spec);

// A layer of the stored sets, with its input and what it answers.
struct StoredCase {
  TestLayer layer;
  TestInput input;
  std::vector<double> y;               // [N, d_out]
  std::vector<std::vector<double>> p;  // per sequence [H, T, S]
};

StoredCase BertGolden(int64_t layer);           // 0, 1
StoredCase MistralWindowGolden(int64_t layer);  // 0, 1
StoredCase Minilm(int64_t layer);               // 0, 3
StoredCase Smollm2(int64_t layer);              // 0, 12

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_STORED_LAYER_H_
