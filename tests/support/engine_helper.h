// SPDX-License-Identifier: Apache-2.0
// An Engine for tests: layers from plain numbers, calls that wait for their answer.
#ifndef HEADWISE_TESTS_SUPPORT_ENGINE_HELPER_H_
#define HEADWISE_TESTS_SUPPORT_ENGINE_HELPER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine.h"
#include "core/request.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {

inline constexpr uint32_t kAllOutputs = kOutputY | kOutputZ | kOutputP | kOutputScores | kOutputQ |
                                        kOutputK | kOutputV | kOutputContributions;

// Ends the test program if the engine can't be made.
std::unique_ptr<Engine> MakeEngine(int64_t threads = 2, EngineLimits limits = {},
                                   KernelPath kernel = KernelPath::kAuto);

// Loads `layer` under `name`, replacing an older one. Ends the test program if it is refused.
void Load(Engine* engine, const std::string& name, const TestLayer& layer,
          DType dtype = DType::kF32);

// Queues the request and waits for its answer.
absl::StatusOr<ForwardResult> ForwardNow(Engine* engine, ForwardRequest request);
absl::StatusOr<AblateResult> AblateNow(Engine* engine, AblateRequest request);

ForwardRequest MakeForward(const std::string& layer, const TestInput& input,
                           uint32_t outputs = kOutputY);

// Answers queued together with the compute slot held, so that they share passes.
std::vector<absl::StatusOr<ForwardResult>> ForwardTogether(Engine* engine,
                                                           std::vector<ForwardRequest> requests);

// The outputs of an answer by name, as floats.
std::map<std::string, std::vector<float>> ByName(const std::vector<NamedOutput>& outputs);

// Loads `layer` in a fresh engine and returns the outputs of one forward. A refusal fails the test
// and gives an empty map.
std::map<std::string, std::vector<float>> RunForward(const TestLayer& layer, const TestInput& input,
                                                     uint32_t outputs = kOutputY);

// `y` of RunForward.
std::vector<float> RunY(const TestLayer& layer, const TestInput& input);

// y where `heads` are zero-ablated. A refusal fails the test and gives an empty vector.
std::vector<float> RunAblatedY(const TestLayer& layer, const TestInput& input,
                               const std::vector<int64_t>& heads);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_ENGINE_HELPER_H_
