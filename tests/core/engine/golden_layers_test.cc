// SPDX-License-Identifier: Apache-2.0
// The engine against every golden layer: loader, kernels and batching together.
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/golden_layer.h"

namespace headwise {
namespace {

constexpr double kYError = 1e-5;  // of the largest |y|
constexpr double kPError = 5e-6;

class GoldenLayersInF32 : public ::testing::TestWithParam<GoldenLayer> {};

TEST_P(GoldenLayersInF32, AnswerAsTheModelDid) {
  const GoldenTensors golden = ReadGolden(GetParam());
  const TestLayer layer = LoadGolden(GetParam());
  ASSERT_FALSE(layer.matrices.wo.empty());
  const auto outputs =
      RunForward(layer, GoldenInput(GetParam(), golden), kOutputY | kOutputZ | kOutputP);
  ASSERT_EQ(outputs.size(), golden.p.size() + 2);
  for (size_t b = 0; b < golden.p.size(); ++b) {
    const std::string p = absl::StrCat("p.", b);
    EXPECT_TRUE(AllNear(outputs.at(p), golden.p[b], kPError)) << p;
  }
  EXPECT_TRUE(AllNear(outputs.at("z"), golden.z, kYError * LargestMagnitude(golden.z)));
  const int64_t width = layer.spec.d_out;
  EXPECT_TRUE(AllNear(outputs.at("y"), golden.y, kYError * LargestMagnitude(golden.y),
                      {static_cast<int64_t>(golden.y.size()) / width, width}));
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenLayersInF32, ::testing::ValuesIn(GoldenLayers()),
                         [](const auto& layer) { return GoldenName(layer.param); });

}  // namespace
}  // namespace headwise
