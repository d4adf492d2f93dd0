// SPDX-License-Identifier: Apache-2.0
// The batcher's contract, through the engine's door.
#include "core/batch/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "core/base/cpu_budget.h"
#include "core/base/worker_pool.h"
#include "core/engine.h"
#include "tests/support/engine_helper.h"
#include "tests/support/fake_clock.h"
#include "tests/support/test_input.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

// Holds an engine's compute slot until it is let go.
class HeldSlot {
 public:
  explicit HeldSlot(Engine* engine)
      : holder_([this, engine] {
          engine->RunExclusive([this] {
            held_.set_value();
            released_.get_future().wait();
          });
        }) {
    held_.get_future().wait();
  }
  ~HeldSlot() { Release(); }
  void Release() {
    if (!holder_.joinable()) return;
    released_.set_value();
    holder_.join();
  }

 private:
  std::promise<void> held_, released_;
  std::thread holder_;
};

using Answer = absl::StatusOr<ForwardResult>;

std::future<Answer> Ask(Engine* engine, ForwardRequest request) {
  auto promise = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = promise->get_future();
  engine->Forward(std::move(request),
                  [promise](Answer result) { promise->set_value(std::move(result)); });
  return answer;
}

class ExecutorTest : public ::testing::Test {
 protected:
  void Make(EngineLimits limits = {}) {
    EngineOptions options;
    options.threads = 2;
    options.limits = limits;
    options.clock = &clock_;
    engine_ = *Engine::Create(options);
    Load(engine_.get(), "layer", RandomLayer(BasicSpec(16, 2), 1));
  }
  ForwardRequest Request(int64_t length = 10) {
    return MakeForward("layer", TestInput(16, RandomFloats(length * 16, 2)));
  }

  FakeClock clock_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(ExecutorTest, QueuedRequestsShareAPass) {
  Make();
  std::vector<std::future<Answer>> answers;
  {
    HeldSlot held(engine_.get());
    for (int i = 0; i < 32; ++i) answers.push_back(Ask(engine_.get(), Request()));
  }
  for (auto& answer : answers) {
    const Answer result = answer.get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->pass.batch_requests, 32);
    EXPECT_EQ(result->pass.batch_tokens, 320);
  }
  EXPECT_LE(engine_->stats().passes, 2);
  EXPECT_EQ(engine_->stats().pass_requests, 32);
}

TEST_F(ExecutorTest, OneRequestAPassWhereBatchingIsOff) {
  EngineLimits limits;
  limits.max_batch_requests = 1;
  Make(limits);
  std::vector<std::future<Answer>> answers;
  {
    HeldSlot held(engine_.get());
    for (int i = 0; i < 5; ++i) answers.push_back(Ask(engine_.get(), Request()));
  }
  for (auto& answer : answers) EXPECT_EQ(answer.get()->pass.batch_requests, 1);
  EXPECT_EQ(engine_->stats().passes, 5);
}

TEST_F(ExecutorTest, ABatchDelayGathersWhatComesSoon) {
  EngineOptions options;
  options.threads = 1;
  options.batch_delay = absl::Seconds(20);  // ended by a full batch, not by the clock
  options.limits.max_batch_tokens = 30;
  engine_ = *Engine::Create(options);
  Load(engine_.get(), "layer", RandomLayer(BasicSpec(16, 2), 1));
  std::vector<std::future<Answer>> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(Ask(engine_.get(), Request()));
  for (auto& answer : answers) EXPECT_EQ(answer.get()->pass.batch_requests, 3);
}

TEST_F(ExecutorTest, PinnedThreadsStayOnOneCpu) {
  EngineOptions options;
  options.threads = 2;
  options.pin_threads = true;
  engine_ = *Engine::Create(options);
  size_t cpus = 0;
  engine_->RunExclusive([&] { cpus = AffinityCpus().size(); });
  EXPECT_EQ(cpus, 1u);
}

TEST_F(ExecutorTest, LayersHaveABudget) {
  EngineLimits limits;
  limits.layer_budget_bytes = 3 * (4 * 16 * 16 + 4 * 16) * 4;  // room for three
  Make(limits);
  const TestLayer layer = RandomLayer(BasicSpec(16, 2), 1);
  Load(engine_.get(), "second", layer);
  Load(engine_.get(), "third", layer);
  const LayerTensors tensors(layer);
  const auto load = [&] {
    return engine_->LoadLayer({.name = "fourth"}, layer.spec, tensors.roles()).status();
  };
  EXPECT_TRUE(absl::IsResourceExhausted(load()));
  EXPECT_THAT(std::string(load().message()), HasSubstr("--layer-budget-bytes"));
  ASSERT_TRUE(engine_->UnloadLayer("second").ok());
  EXPECT_TRUE(load().ok());
  EXPECT_EQ(engine_->stats().layer_bytes, limits.layer_budget_bytes);
}

TEST_F(ExecutorTest, AFullQueueRefusesAtOnceAndRecovers) {
  EngineLimits limits;
  limits.queue_tokens = 25;
  Make(limits);
  std::vector<std::future<Answer>> answers;
  {
    HeldSlot held(engine_.get());
    for (int i = 0; i < 2; ++i) answers.push_back(Ask(engine_.get(), Request()));
    const Answer refused = Ask(engine_.get(), Request()).get();
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("25"));
    EXPECT_EQ(engine_->stats().refused_full, 1);
    EXPECT_EQ(engine_->stats().queued_tokens, 20);
  }
  for (auto& answer : answers) EXPECT_TRUE(answer.get().ok());
  EXPECT_TRUE(Ask(engine_.get(), Request()).get().ok());
}

TEST_F(ExecutorTest, ExpiredRequestsLeaveBeforeAnyKernel) {
  Make();
  std::future<Answer> expired, alive;
  {
    HeldSlot held(engine_.get());
    ForwardRequest request = Request();
    request.context.deadline = clock_.Now() + absl::Milliseconds(5);
    expired = Ask(engine_.get(), std::move(request));
    alive = Ask(engine_.get(), Request());
    clock_.Advance(absl::Milliseconds(5));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(expired.get().status()));
  EXPECT_EQ(alive.get()->pass.batch_requests, 1);
  EXPECT_EQ(engine_->stats().dropped_expired, 1);
}

TEST_F(ExecutorTest, WhatCannotEndInTimeIsNotStarted) {
  // The real clock: the executor learns what the work takes.
  auto engine = MakeEngine(1);
  Load(engine.get(), "layer", RandomLayer(BasicSpec(16, 2), 1));
  constexpr int64_t kLength = 3000;  // some milliseconds
  ASSERT_TRUE(Ask(engine.get(), Request(kLength)).get().ok());
  const int64_t passes = engine->stats().passes;
  std::future<Answer> hopeless, patient;
  {
    HeldSlot held(engine.get());
    ForwardRequest request = Request(kLength);
    request.context.deadline = absl::Now() + absl::Microseconds(1500);
    hopeless = Ask(engine.get(), std::move(request));
    patient = Ask(engine.get(), Request(kLength));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(hopeless.get().status()));
  EXPECT_TRUE(patient.get().ok());
  EXPECT_EQ(engine->stats().passes, passes + 1);
}

TEST_F(ExecutorTest, ExpiredOnArrivalIsRefusedAtTheDoor) {
  Make();
  ForwardRequest request = Request();
  request.context.deadline = clock_.Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(engine_.get(), std::move(request)).get().status()));
  EXPECT_EQ(engine_->stats().passes, 0);
}

TEST_F(ExecutorTest, CancelledRequestsAreAnsweredWhileTheSlotIsHeld) {
  Make();
  HeldSlot held(engine_.get());
  ForwardRequest request = Request();
  request.context.cancel = std::make_shared<CancelToken>();
  const std::shared_ptr<CancelToken> token = request.context.cancel;
  std::future<Answer> answer = Ask(engine_.get(), std::move(request));
  token->Cancel();
  engine_->CancelQueued();
  EXPECT_TRUE(absl::IsCancelled(answer.get().status()));
  EXPECT_EQ(engine_->stats().dropped_cancelled, 1);
  EXPECT_EQ(engine_->stats().queued_tokens, 0);
}

TEST_F(ExecutorTest, EndingTheEngineAnswersWhatWaits) {
  Make();
  std::future<Answer> waiting;
  std::promise<void> held, release;
  std::thread holder([&] {
    engine_->RunExclusive([&] {
      held.set_value();
      release.get_future().wait();
    });
  });
  held.get_future().wait();
  waiting = Ask(engine_.get(), Request());
  std::thread ending([&] { engine_.reset(); });
  release.set_value();
  holder.join();
  ending.join();
  // Either the last pass still took it, or it was told that the server ends.
  const Answer answer = waiting.get();
  EXPECT_TRUE(answer.ok() || absl::IsUnavailable(answer.status())) << answer.status();
}

TEST_F(ExecutorTest, AReplacedLayerServesWhatWasAskedOfIt) {
  Make();
  const std::vector<float> before = ByName(ForwardNow(engine_.get(), Request())->outputs).at("y");
  std::future<Answer> old_layer, new_layer;
  {
    HeldSlot held(engine_.get());
    old_layer = Ask(engine_.get(), Request());
    Load(engine_.get(), "layer", RandomLayer(BasicSpec(16, 2), 99));
    new_layer = Ask(engine_.get(), Request());
  }
  const Answer first = old_layer.get(), second = new_layer.get();
  EXPECT_EQ(first->pass.layer_version, 1);
  EXPECT_EQ(ByName(first->outputs).at("y"), before);
  EXPECT_EQ(second->pass.layer_version, 2);
  EXPECT_NE(ByName(second->outputs).at("y"), before);
  ForwardRequest pinned = Request();
  pinned.expected_version = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(engine_.get(), std::move(pinned)).get().status()));
}

TEST(WorkerPool, RunsEveryTaskOnceOnDistinctWorkers) {
  for (const int threads : {1, 2, 3, 8}) {
    WorkerPool pool(threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      std::vector<std::atomic<int>> busy(static_cast<size_t>(threads));
      pool.Run(count, [&](int64_t task, int worker) {
        EXPECT_EQ(busy[static_cast<size_t>(worker)].fetch_add(1), 0) << "worker used twice at once";
        runs[static_cast<size_t>(task)].fetch_add(1);
        busy[static_cast<size_t>(worker)].fetch_sub(1);
      });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
    }
  }
}

// Helpers that look out for work, that sleep, and that are about to: all join in.
TEST(WorkerPool, HelpersJoinInAfterAnyPause) {
  WorkerPool pool(3);
  for (const int64_t pause_us : {0, 15, 25, 150, 170, 2000}) {
    for (const bool rests : {false, true}) {
      for (int round = 0; round < 20; ++round) {
        // Called in vain every third time, and by somebody else while the job begins.
        std::thread other;
        if (round % 2 == 0) other = std::thread([&pool] { pool.Expect(); });
        std::atomic<int> runs{0};
        if (round % 3 != 0) pool.Run(30, [&](int64_t, int) { runs.fetch_add(1); });
        EXPECT_EQ(runs.load(), round % 3 != 0 ? 30 : 0)
            << pause_us << " us, " << (rests ? "resting" : "not resting");
        if (other.joinable()) other.join();
        if (rests) pool.Rest();
        std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      }
    }
  }
}

}  // namespace
}  // namespace headwise
