// SPDX-License-Identifier: Apache-2.0
// A layer of tests/golden as the checkpoint loader brings it.
#ifndef HEADWISE_TESTS_SUPPORT_GOLDEN_LAYER_H_
#define HEADWISE_TESTS_SUPPORT_GOLDEN_LAYER_H_

#include "core/checkpoint/checkpoint.h"
#include "tests/support/golden.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {

// The plan by the case's config file. A refusal fails the test and gives an empty plan.
LayerPlan PlanGolden(const GoldenLayer& layer);

// Planned, read and unpacked. A refusal fails the test and gives an empty layer.
TestLayer LoadGolden(const GoldenLayer& layer);

TestInput GoldenInput(const GoldenLayer& layer, const GoldenTensors& tensors);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_GOLDEN_LAYER_H_
