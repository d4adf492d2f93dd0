// SPDX-License-Identifier: Apache-2.0
// The parts under the handlers from many threads at once, without gRPC: what the thread sanitizer
// can judge.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/layer/demo_layers.h"
#include "server/call_tracker.h"
#include "server/health.h"
#include "server/layer_loader.h"
#include "server/metrics.h"
#include "server/worker.h"
#include "tests/server/fake_engine.h"

namespace headwise {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 50;

void InThreads(const std::function<void(int thread)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

UploadLoad TwoHead(const std::string& name) {
  DemoLayer demo = TwoHeadLayer();
  UploadLoad load;
  load.options.name = name;
  load.spec = demo.spec;
  for (DemoTensor& tensor : demo.tensors) {
    load.uses.push_back({tensor.role, tensor.name});
    load.tensors.push_back({tensor.name, std::move(tensor.tensor)});
  }
  return load;
}

class LastTold : public HealthBoard::Watcher {
 public:
  void Tell(Health health, bool) override { last = health; }
  std::atomic<Health> last{Health::kNotServing};
};

// Layers come and go on several threads while others watch, count and list.
TEST(Concurrency, LoadsUnloadsHealthAndMetrics) {
  FakeEngine engine;
  Metrics metrics(&engine, "1");
  HealthBoard health([&engine](absl::string_view name) {
    absl::ConsumePrefix(&name, "layer/");
    return engine.GetLayer(name).ok() ? Health::kServing : Health::kUnknownName;
  });
  auto loader = LayerLoader::Create(&engine, "", [&] {
    health.Refresh();
    metrics.Refresh();
  });
  ASSERT_TRUE(loader.ok());
  std::vector<LastTold> watchers(kThreads);
  InThreads([&](int thread) {
    const std::string name = absl::StrCat("layer", thread);
    health.Watch("layer/" + name, &watchers[static_cast<size_t>(thread)]);
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_TRUE((*loader)->LoadNow(TwoHead(name)).ok());
      metrics.Record({name, "Forward", absl::OkStatus(), absl::Milliseconds(1)});
      EXPECT_EQ(health.Check("layer/" + name), Health::kServing);
      EXPECT_FALSE(metrics.Text().empty());
      ASSERT_TRUE((*loader)->Unload(name).ok());
    }
    ASSERT_TRUE((*loader)->LoadNow(TwoHead(name)).ok());
  });
  for (LastTold& watcher : watchers) {
    EXPECT_EQ(watcher.last, Health::kServing);
    health.Unwatch(&watcher);
  }
  EXPECT_EQ(engine.ListLayers().size(), static_cast<size_t>(kThreads));
}

TEST(Concurrency, QueuedLoadsAllAnswerAndCancelledOnesLeaveNoTrace) {
  FakeEngine engine;
  auto loader = LayerLoader::Create(&engine, "", [] {});
  ASSERT_TRUE(loader.ok());
  std::atomic<int> ok{0};
  std::atomic<int> cancelled{0};
  InThreads([&](int thread) {
    for (int i = 0; i < 20; ++i) {
      auto cancel = std::make_shared<CancelToken>();
      if (i % 2 == 1) cancel->Cancel();
      const absl::Status posted =
          (*loader)->Load(TwoHead(absl::StrCat("l", thread, ".", i)), cancel,
                          [&](absl::StatusOr<LayerInfo> info) { ++(info.ok() ? ok : cancelled); });
      ASSERT_TRUE(posted.ok()) << posted;
    }
  });
  loader->reset();  // runs what waits
  EXPECT_EQ(ok, kThreads * 10);
  EXPECT_EQ(cancelled, kThreads * 10);
  EXPECT_EQ(engine.ListLayers().size(), static_cast<size_t>(kThreads * 10));
}

// Each job waits for the other one to have begun.
TEST(Concurrency, WorkerOfTwoThreadsRunsTwoJobsAtATime) {
  std::latch both(2);
  Worker worker(2, 2);
  EXPECT_TRUE(worker.Post([&] { both.arrive_and_wait(); }));
  EXPECT_TRUE(worker.Post([&] { both.arrive_and_wait(); }));
  both.wait();
}

TEST(Concurrency, WorkerRunsJobsInOrderAndRefusesTooMany) {
  std::vector<int> order;
  std::atomic<bool> started{false};
  std::atomic<bool> go{false};
  {
    Worker worker(2);
    ASSERT_TRUE(worker.Post([&] {
      started = true;
      started.notify_all();
      go.wait(false);
      order.push_back(0);
    }));
    started.wait(false);
    EXPECT_TRUE(worker.Post([&] { order.push_back(1); }));
    EXPECT_TRUE(worker.Post([&] { order.push_back(2); }));
    EXPECT_FALSE(worker.Post([&] { order.push_back(3); }));
    go = true;
    go.notify_all();
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

class CountedCall : public LiveCall {
 public:
  void Abort() override {}
};

TEST(Concurrency, TheTrackerSeesTheLastCallLeave) {
  CallTracker tracker;
  std::atomic<int> entered{0};
  std::atomic<int> left{0};
  std::thread drainer([&] {
    while (entered < 100) std::this_thread::yield();
    tracker.StartDraining();
    EXPECT_TRUE(tracker.WaitIdle(CallTracker::TimePoint::max()));
    EXPECT_EQ(entered, left);
  });
  InThreads([&](int) {
    while (true) {
      CountedCall call;
      if (!tracker.Enter(&call)) return;
      ++entered;
      ++left;
      tracker.Leave(&call);
    }
  });
  drainer.join();
}

}  // namespace
}  // namespace headwise
