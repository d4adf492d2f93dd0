// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

// Scores never exist beyond a tile: a forward of T 4096 takes far less than its T x S tensor.
TEST(Memory, ForwardAtT4096NeedsLessThanATenthOfItsScores) {
  constexpr int64_t kLength = 4096, kWidth = 576, kHeads = 9;
  ServerProcess server;
  const auto client = ConnectTo(server);
  LoadStored(client.get(), "layer", "data/smollm2", "12");
  const auto short_request = MakeForwardRequest("layer", RandomFloats(16 * kWidth, 1), {16});
  ASSERT_TRUE(client->Forward(short_request).ok());
  const int64_t before = server.PeakResidentBytes();
  const auto request = MakeForwardRequest("layer", RandomFloats(kLength * kWidth, 2), {kLength});
  ASSERT_TRUE(client->Forward(request).ok());
  const int64_t grown = server.PeakResidentBytes() - before;
  constexpr int64_t kScoreBytes = kHeads * kLength * kLength * 4;
  EXPECT_LT(grown, kScoreBytes / 10) << "score tensor " << kScoreBytes;
}

}  // namespace
}  // namespace headwise
