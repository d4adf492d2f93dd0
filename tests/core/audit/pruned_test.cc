// SPDX-License-Identifier: Apache-2.0
// Audits of pruned layers. The numbers come from the engine: planted code knows no norm of q and k.
#include <gtest/gtest.h>

#include "core/audit/search.h"
#include "core/layer/derive.h"
#include "tests/core/audit/planted_case.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

TEST(Search, KnowsThePrunedHeadsInANormOverTheWholeWidth) {
  LayerSpec spec = BasicSpec(16, 4);
  spec.kv_heads = 2;
  spec.mask.causal = true;
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kWidth};
  const TestLayer whole = RandomLayer(spec, 3);
  const auto pruned = PruneHeads({whole.spec, whole.matrices}, {0, 1});
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  PlantedCase made;
  made.layer = {pruned->spec, pruned->matrices};
  made.input.x = RandomFloats(40 * 16, 8);
  made.input.lengths = {25, 15};
  const auto search = [&](const TestLayer& theirs) {
    TheirTensors tensors;
    tensors.y = Doubles(RunY(theirs, made.ForEngine()));
    SearchOptions options;
    options.pairs = false;
    return FindMistakes(made.Right(), tensors, options);
  };
  EXPECT_EQ(search(made.layer).verdict, AuditVerdict::kRight);
  TestLayer wrong = made.layer;
  wrong.matrices.bq.clear();
  wrong.matrices.bq_statistic.clear();
  EXPECT_TRUE(Names(search(wrong), "bias_q")) << Describe(search(wrong));
  wrong = made.layer;
  wrong.spec.qk_norm = QkNormSpec{.span = QkNormSpan::kWidth};  // of the heads that are left
  for (auto* rows : {&wrong.matrices.wq_statistic, &wrong.matrices.wk_statistic,
                     &wrong.matrices.bq_statistic, &wrong.matrices.bk_statistic}) {
    rows->clear();
  }
  EXPECT_NE(search(wrong).verdict, AuditVerdict::kRight);
}

}  // namespace
}  // namespace headwise
