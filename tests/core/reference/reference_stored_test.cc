// SPDX-License-Identifier: Apache-2.0
// The reference against layers computed by frameworks and stored (tests/golden, tests/data).
#include <string>

#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/reference_helper.h"
#include "tests/support/stored_layer.h"

namespace headwise {
namespace {

// Errors relative to the largest |y|, and of p.
void ExpectAgrees(const StoredCase& stored, double y_tolerance, double p_tolerance) {
  const std::vector<ReferenceSequence> sequences = RunReference(stored.layer, stored.input);
  ASSERT_EQ(sequences.size(), stored.p.size());
  std::vector<double> y;
  for (size_t b = 0; b < sequences.size(); ++b) {
    EXPECT_TRUE(AllNear(sequences[b].p, stored.p[b], p_tolerance)) << "p." << b;
    y.insert(y.end(), sequences[b].y.begin(), sequences[b].y.end());
  }
  const int64_t width = stored.layer.spec.d_out;
  EXPECT_TRUE(AllNear(y, stored.y, y_tolerance * LargestMagnitude(stored.y),
                      {static_cast<int64_t>(y.size()) / width, width}));
}

TEST(ReferenceStored, Bert) {
  ExpectAgrees(BertGolden(0), 1e-12, 1e-12);
  ExpectAgrees(BertGolden(1), 1e-12, 1e-12);
}

TEST(ReferenceStored, MistralWindow) {
  ExpectAgrees(MistralWindowGolden(0), 1e-12, 1e-12);
  ExpectAgrees(MistralWindowGolden(1), 1e-12, 1e-12);
}

// The answers of the trained layers are stored as F32.
TEST(ReferenceStored, Minilm) { ExpectAgrees(Minilm(0), 6e-8, 6e-8); }

TEST(ReferenceStored, Smollm2) { ExpectAgrees(Smollm2(12), 6e-8, 6e-8); }

}  // namespace
}  // namespace headwise
