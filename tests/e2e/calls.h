// SPDX-License-Identifier: Apache-2.0
// Requests over gRPC for tests against a server process.
#ifndef HEADWISE_TESTS_E2E_CALLS_H_
#define HEADWISE_TESTS_E2E_CALLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "headwise/v1/headwise.pb.h"
#include "tests/e2e/process.h"

namespace headwise {

std::unique_ptr<client::Client> ConnectTo(const ServerProcess& server, double timeout_s = 60.0);

// A forward of packed sequences. `x` is [sum of lengths, width].
v1::ForwardRequest MakeForwardRequest(const std::string& layer, const std::vector<float>& x,
                                      const std::vector<int64_t>& lengths,
                                      const std::vector<v1::Output>& outputs = {});

// The tensor `name` of an answer as floats; a missing one fails the test.
std::vector<float> TensorFloats(const v1::ForwardResponse& response, const std::string& name);

// Uploads a layer of random weights: H heads, all four biases, not causal.
void UploadRandomLayer(client::Client* client, const std::string& name, int64_t d_model,
                       int64_t heads);

// Loads `layer` of the test data's folder `dir` under `name` and fails the test if that is refused.
void LoadStored(client::Client* client, const std::string& name, const std::string& dir,
                const std::string& layer);

// A real layer's stored inputs: x and the lengths of its sequences.
struct StoredInput {
  std::vector<float> x;
  std::vector<int64_t> lengths;
  int64_t width = 0;
};
StoredInput ReadStoredInput(const std::string& dir, int64_t layer);

}  // namespace headwise

#endif  // HEADWISE_TESTS_E2E_CALLS_H_
