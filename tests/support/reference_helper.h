// SPDX-License-Identifier: Apache-2.0
// The float64 reference for tests.
#ifndef HEADWISE_TESTS_SUPPORT_REFERENCE_HELPER_H_
#define HEADWISE_TESTS_SUPPORT_REFERENCE_HELPER_H_

#include <map>
#include <string>
#include <vector>

#include "core/reference/reference.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {

// Runs the reference. A refusal fails the test and gives nothing.
std::vector<ReferenceSequence> RunReference(const TestLayer& layer, const TestInput& input,
                                            const ReferenceOptions& options = {});

// The same, packed and named as an engine's outputs are: y, z, q, k, v, contributions, p.B,
// scores.B.
std::map<std::string, std::vector<double>> ReferenceByName(const TestLayer& layer,
                                                           const TestInput& input,
                                                           const ReferenceOptions& options = {});

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_REFERENCE_HELPER_H_
