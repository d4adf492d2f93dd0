// SPDX-License-Identifier: Apache-2.0
// Short requests beside long ones, and urgent ones beside sweeps.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "core/engine.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using Answer = absl::StatusOr<ForwardResult>;

// CPU time of all threads of this process: what a neighbour on the machine takes isn't in it.
double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr double kSlowdown = HEADWISE_SANITIZED ? 20.0 : 1.0;

// Heads of width 1, where the softmax is all the work: some 100 ms for a few thousand tokens.
constexpr int64_t kSlowWidth = 8, kSlowHeads = 8, kLong = 8000;

class UnequalWork : public ::testing::TestWithParam<int64_t> {
 protected:
  UnequalWork() : engine_(MakeEngine(GetParam())) {
    Load(engine_.get(), "slow", RandomLayer(BasicSpec(kSlowWidth, kSlowHeads), 1));
    Load(engine_.get(), "quick", RandomLayer(BasicSpec(16, 2), 2));
  }
  ForwardRequest Long() {
    return MakeForward("slow", TestInput(kSlowWidth, RandomFloats(kLong * kSlowWidth, 3)));
  }
  ForwardRequest Short(uint32_t seed = 4) {
    return MakeForward("quick", TestInput(16, RandomFloats(10 * 16, seed)));
  }
  std::future<Answer> Ask(ForwardRequest request) {
    auto promise = std::make_shared<std::promise<Answer>>();
    std::future<Answer> answer = promise->get_future();
    engine_->Forward(std::move(request),
                     [promise](Answer result) { promise->set_value(std::move(result)); });
    return answer;
  }
  void AwaitPasses(int64_t passes) {
    while (engine_->stats().passes < passes) std::this_thread::yield();
  }
  // Calls the request off once it has run for a while. What is computed after that is little.
  void ExpectStopsSoon(ForwardRequest request, int after_ms = 0) {
    request.context.cancel = std::make_shared<CancelToken>();
    const std::shared_ptr<CancelToken> cancel = request.context.cancel;
    const int64_t before = engine_->stats().passes;
    std::future<Answer> answer = Ask(std::move(request));
    AwaitPasses(before + 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
    const double told = CpuSeconds();
    cancel->Cancel();
    EXPECT_TRUE(absl::IsCancelled(answer.get().status()));
    EXPECT_LT(CpuSeconds() - told, 0.020 * static_cast<double>(GetParam()) * kSlowdown);
  }
  static bool Running(const std::future<Answer>& answer) {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  }

  std::unique_ptr<Engine> engine_;
};

TEST_P(UnequalWork, ShortRequestsRunInsideALongPassWithTheSameBits) {
  const std::vector<float> alone = ByName(ForwardNow(engine_.get(), Short())->outputs).at("y");
  const std::vector<float> long_alone = ByName(ForwardNow(engine_.get(), Long())->outputs).at("y");
  const int64_t before = engine_->stats().passes;
  std::future<Answer> long_answer = Ask(Long());
  AwaitPasses(before + 1);
  for (int i = 0; i < 5; ++i) {
    const Answer answer = Ask(Short()).get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(SameBits(ByName(answer->outputs).at("y"), alone));
  }
  EXPECT_TRUE(Running(long_answer));
  const Answer last = long_answer.get();
  ASSERT_TRUE(last.ok());
  EXPECT_TRUE(SameBits(ByName(last->outputs).at("y"), long_alone));
  EXPECT_EQ(last->pass.batch_requests, 1);
  EXPECT_GE(engine_->stats().interrupts, 5);
}

TEST_P(UnequalWork, AnOrdinaryRequestOvertakesASweepOnceItRuns) {
  AblateRequest sweep;
  const ForwardRequest input = Long();
  sweep.layer = "slow";
  sweep.input = input.input;
  sweep.sweep = SweepKind::kLeaveOneOut;
  std::promise<absl::Status> swept;
  std::future<absl::Status> sweep_ended = swept.get_future();
  engine_->Ablate(sweep,
                  [&](absl::StatusOr<AblateResult> result) { swept.set_value(result.status()); });
  AwaitPasses(1);
  // Too large to count as short, but not for a sweep.
  ForwardRequest medium =
      MakeForward("slow", TestInput(kSlowWidth, RandomFloats(1500 * kSlowWidth, 5)));
  EXPECT_TRUE(Ask(std::move(medium)).get().ok());
  EXPECT_EQ(sweep_ended.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_TRUE(sweep_ended.get().ok());
}

TEST_P(UnequalWork, ShortRequestsQueuedBehindLongOnesDoNotWaitForThem) {
  std::vector<std::future<Answer>> longs;
  for (int i = 0; i < 4; ++i) longs.push_back(Ask(Long()));
  AwaitPasses(1);
  std::vector<std::future<Answer>> shorts;
  for (uint32_t i = 0; i < 20; ++i) shorts.push_back(Ask(Short(10 + i)));
  for (auto& answer : shorts) EXPECT_TRUE(answer.get().ok());
  EXPECT_TRUE(Running(longs.back()));
  for (auto& answer : longs) EXPECT_TRUE(answer.get().ok());
}

TEST_P(UnequalWork, CancelledWorkStopsWithin20MsOfCompute) { ExpectStopsSoon(Long()); }

// One query tile against so many keys that a task of it takes some 50 ms.
class LongTask : public UnequalWork {
 protected:
  static constexpr int64_t kQueries = 64, kKeys = 1'000'000;

  LongTask() { Load(engine_.get(), "one", RandomLayer(BasicSpec(kSlowWidth, 1), 6)); }
  ForwardRequest OneTask() {
    TestInput input(kSlowWidth, RandomFloats(kQueries * kSlowWidth, 7));
    input.Memory(kSlowWidth, RandomFloats(kKeys * kSlowWidth, 8), {kKeys});
    return MakeForward("one", input);
  }
  // Longest wait, in the queue, of short requests that come one after the other while the long one
  // runs; in seconds.
  double LongestWait() {
    const int64_t before = engine_->stats().passes;
    std::future<Answer> answer = Ask(OneTask());
    AwaitPasses(before + 1);
    int64_t longest_us = 0;
    while (Running(answer)) {
      const Answer quick = Ask(Short()).get();
      EXPECT_TRUE(quick.ok()) << quick.status();
      if (!quick.ok() || !Running(answer)) break;
      longest_us = std::max(longest_us, quick->pass.queue_us);
    }
    const Answer result = answer.get();
    EXPECT_TRUE(result.ok()) << result.status();
    return 1e-6 * static_cast<double>(longest_us);
  }
};

TEST_P(LongTask, ShortRequestsDoNotWaitForAWholeTask) {
  // Other programs on the machine may spoil a measurement or two.
  double wait = 1.0;
  for (int attempt = 0; attempt < 5 && wait > 0.010 * kSlowdown; ++attempt) wait = LongestWait();
  EXPECT_LE(wait, 0.010 * kSlowdown);
}

TEST_P(LongTask, AndItIsCalledOffInTheMiddle) {
  // The first of it packs and projects a million keys; most of the rest is the one task.
  for (const int after_ms : {0, 20, 40}) ExpectStopsSoon(OneTask(), after_ms);
}

INSTANTIATE_TEST_SUITE_P(Threads, UnequalWork, ::testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Threads, LongTask, ::testing::Values(1, 2));

}  // namespace
}  // namespace headwise
