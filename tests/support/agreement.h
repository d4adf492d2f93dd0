// SPDX-License-Identifier: Apache-2.0
// Engine against reference, every output of a request, within bounds derived from the arithmetic.
#ifndef HEADWISE_TESTS_SUPPORT_AGREEMENT_H_
#define HEADWISE_TESTS_SUPPORT_AGREEMENT_H_

#include <map>
#include <string>
#include <vector>

#include "core/engine.h"
#include "gtest/gtest.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {

// Allowed absolute error of each output of a layer in `dtype`, from the numbers of the reference.
// Sums of n random terms round to about sqrt(n) epsilon; numbers in bf16 are within 2^-9 of their
// own size, in int8 within 1/254 of the largest of their row; an error e of all scores moves a
// weight by at most e / 2 and by a share of itself of at most 2 e.
std::map<std::string, double> Tolerances(
    const TestLayer& layer, const std::map<std::string, std::vector<double>>& reference,
    DType dtype = DType::kF32);

// Loads the layer, asks for all outputs and compares each; the failure names output, element and
// coordinates.
::testing::AssertionResult AgreesWithReference(Engine* engine, const TestLayer& layer,
                                               const TestInput& input, DType dtype = DType::kF32);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_AGREEMENT_H_
