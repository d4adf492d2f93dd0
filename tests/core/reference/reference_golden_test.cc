// SPDX-License-Identifier: Apache-2.0
// Loader and reference against every golden layer, in both styles of config.json.
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/golden_layer.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

constexpr double kTolerance = 1e-12;

class ReferenceGolden : public ::testing::TestWithParam<GoldenLayer> {};

TEST_P(ReferenceGolden, AnswersAsTheModelDid) {
  const GoldenTensors golden = ReadGolden(GetParam());
  const TestLayer layer = LoadGolden(GetParam());
  ASSERT_FALSE(layer.matrices.wo.empty());
  const auto named = ReferenceByName(layer, GoldenInput(GetParam(), golden));
  for (size_t b = 0; b < golden.p.size(); ++b) {
    const std::string p = "p." + std::to_string(b);
    EXPECT_TRUE(AllNear(named.at(p), golden.p[b], kTolerance)) << p;
  }
  EXPECT_TRUE(AllNear(named.at("z"), golden.z, kTolerance * LargestMagnitude(golden.z)));
  EXPECT_TRUE(AllNear(named.at("y"), golden.y, kTolerance * LargestMagnitude(golden.y)));
}

INSTANTIATE_TEST_SUITE_P(Golden, ReferenceGolden, ::testing::ValuesIn(GoldenLayers()),
                         [](const auto& layer) { return GoldenName(layer.param); });

}  // namespace
}  // namespace headwise
