// SPDX-License-Identifier: Apache-2.0
// The system has no memory, or no thread: whoever asked is told so, and the engine goes on.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>

#include "core/base/memory.h"
#include "core/engine.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

constexpr int64_t kWidth = 24, kHeads = 3;

// Allocations that still succeed; then one fails, then they succeed again.
std::atomic<int64_t> left_until_fault{0};
bool FailOnce() { return left_until_fault.fetch_sub(1) == 0; }

class MemoryFault : public ::testing::TestWithParam<int64_t> {
 protected:
  ~MemoryFault() override { MappedBytes::SetFault(nullptr); }

  // Lets the allocation after `allocations` others fail. False from the destructor on.
  static void FailAfter(int64_t allocations) {
    left_until_fault = allocations;
    MappedBytes::SetFault(&FailOnce);
  }
  static bool Failed() { return left_until_fault < 0; }
  static TestInput Input(int64_t tokens) {
    return TestInput(kWidth, RandomFloats(tokens * kWidth, 3));
  }
};

TEST_P(MemoryFault, ForwardsAndSweepsAreRefusedAndTheNextOnesAreRight) {
  // Each engine has small buffers at first, so that a large request allocates all of them.
  const TestLayer layer = RandomLayer(BasicSpec(kWidth, kHeads), 1);
  const TestInput input = Input(700);
  int refused = 0;
  bool reached_end = false;
  for (int64_t after = 0; after < 60 && !reached_end; ++after) {
    const auto engine = MakeEngine(GetParam());
    Load(engine.get(), "layer", layer);
    FailAfter(after);
    AblateRequest sweep;
    sweep.layer = "layer";
    sweep.input = input.get();
    sweep.sweep = SweepKind::kLeaveOneOut;
    const auto swept = AblateNow(engine.get(), sweep);
    const auto answer = ForwardNow(engine.get(), MakeForward("layer", input, kAllOutputs));
    reached_end = !Failed();
    MappedBytes::SetFault(nullptr);
    for (const absl::Status& status : {swept.status(), answer.status()}) {
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
      refused += status.ok() ? 0 : 1;
    }
    const auto again = ForwardNow(engine.get(), MakeForward("layer", input));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(SameBits(ByName(again->outputs).at("y"), RunY(layer, input)));
  }
  EXPECT_GT(refused, 5);
  EXPECT_TRUE(reached_end);
}

TEST_P(MemoryFault, ALoadIsRefusedAndLeavesNothing) {
  const TestLayer layer = RandomLayer(BasicSpec(kWidth, kHeads), 2);
  const LayerTensors tensors(layer);
  int refused = 0;
  bool reached_end = false;
  for (int64_t after = 0; after < 60 && !reached_end; ++after) {
    const auto engine = MakeEngine(GetParam());
    FailAfter(after);
    LoadOptions options;
    options.name = "layer";
    options.dtype = DType::kI8;
    const absl::Status loaded = engine->LoadLayer(options, layer.spec, tensors.roles()).status();
    reached_end = !Failed();
    MappedBytes::SetFault(nullptr);
    if (!loaded.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(loaded)) << loaded;
      ++refused;
      EXPECT_TRUE(engine->ListLayers().empty());
      EXPECT_EQ(engine->stats().layer_bytes, 0);
    }
    Load(engine.get(), "layer", layer);
    EXPECT_TRUE(ForwardNow(engine.get(), MakeForward("layer", Input(9))).ok());
  }
  EXPECT_GT(refused, 1);
  EXPECT_TRUE(reached_end);
}

INSTANTIATE_TEST_SUITE_P(Threads, MemoryFault, ::testing::Values(1, 2));

}  // namespace
}  // namespace headwise
