// SPDX-License-Identifier: Apache-2.0
// How long a search takes on a layer of common size where nothing explains the numbers.
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/audit/search.h"
#include "tests/core/audit/planted_case.h"

namespace headwise {
namespace {

PlantedCase CommonLayer() {
  LayerSpec spec = BasicSpec(768, 12);
  spec.mask.causal = true;
  spec.rope.emplace();
  spec.rope->layout = RopeLayout::kHalf;
  spec.rope->dims = 64;
  PlantedCase made;
  made.layer = RandomLayer(spec, 1);
  made.input.lengths = {128};
  made.input.x = RandomFloats(128 * 768, 2, 1.7f);
  return made;
}

TEST(SearchSpeed, SinglesTakeFiveSecondsAndPairsAMinute) {
  const PlantedCase made = CommonLayer();
  const AuditCase right = made.Right();
  const StagedLayer layer(right.spec, right.matrices);
  TheirTensors theirs;
  theirs.y = layer.Run(*right.input, layer.Project(*right.input)).y.value;
  theirs.y[1000] += 1.0;  // explained by nothing
  SearchOptions options;
  options.pairs = false;
  const absl::Time start = absl::Now();
  EXPECT_EQ(FindMistakes(right, theirs, options).verdict, AuditVerdict::kUnexplained);
  const absl::Duration singles = absl::Now() - start;
  options.pairs = true;
  EXPECT_EQ(FindMistakes(right, theirs, options).verdict, AuditVerdict::kUnexplained);
  const absl::Duration all = absl::Now() - start - singles;
  RecordProperty("singles_s", absl::FormatDuration(singles));
  RecordProperty("pairs_s", absl::FormatDuration(all));
  EXPECT_LE(singles, absl::Seconds(5));
  EXPECT_LE(all, absl::Seconds(60));
}

}  // namespace
}  // namespace headwise
