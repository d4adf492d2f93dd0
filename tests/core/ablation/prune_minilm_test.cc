// SPDX-License-Identifier: Apache-2.0
// Prune plans of real layers, and what analyses of them say.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/support/engine_helper.h"
#include "tests/support/stored_layer.h"

namespace headwise {
namespace {

PrunePlan PlanOf(int64_t layer) {
  const auto model = OpenSafetensors("data/minilm/model.safetensors");
  const auto inputs = OpenSafetensors("data/minilm/inputs.safetensors");
  auto engine = MakeEngine(2);
  Load(engine.get(), "layer",
       ReadBertLayer(*model, absl::StrCat("encoder.layer.", layer, ".attention"),
                     BasicSpec(384, 12)));
  const TestInput input(384, ReadFloats(*inputs, absl::StrCat("layer", layer, ".x")),
                        ReadIntegers(*inputs, "lengths"));
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  request.sweep = SweepKind::kPrunePlan;
  auto result = AblateNow(engine.get(), std::move(request));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result->prune_plan : PrunePlan{};
}

// Four folds, one to eight heads dropped: gates never cost more than 2 % and win on average; with
// folded means they are the best of the four on average.
TEST(PruneMinilm, GatesAndMeansWinBackWhatTheyCan) {
  for (int64_t layer = 0; layer < 6; ++layer) {
    const PrunePlan plan = PlanOf(layer);
    ASSERT_EQ(plan.steps.size(), 11u);
    double ungated = 0, gated = 0, folded = 0, both = 0;
    for (size_t i = 0; i < 8; ++i) {
      const PruneErrors& e = plan.steps[i].errors;
      EXPECT_LE(*e.gated, 1.02 * *e.ungated) << "layer " << layer << ", " << i + 1 << " dropped";
      ungated += *e.ungated;
      gated += *e.gated;
      folded += *e.mean_folded;
      both += *e.gated_mean_folded;
    }
    EXPECT_LT(gated, ungated) << "layer " << layer;
    EXPECT_LE(both, std::min({ungated, gated, folded})) << "layer " << layer;
    if (layer != 0) continue;
    // Figures of a trial of its own, which cut its folds elsewhere.
    const PruneErrors& four = plan.steps[3].errors;
    EXPECT_NEAR(*four.ungated, 0.485, 1e-2);
    EXPECT_NEAR(*four.gated, 0.469, 1e-2);
    EXPECT_NEAR(*four.mean_folded, 0.403, 1e-2);
    EXPECT_NEAR(*four.gated_mean_folded, 0.398, 1e-2);
  }
}

}  // namespace
}  // namespace headwise
