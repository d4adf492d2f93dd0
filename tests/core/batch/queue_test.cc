// SPDX-License-Identifier: Apache-2.0
#include "core/batch/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/refusal.h"
#include "core/kernel/tile_kernel.h"
#include "tests/support/fake_clock.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const AttentionLayer> SmallLayer(const std::string& name = "layer") {
  TestLayer test = IdentityLayer(4, 2);
  LayerInfo info;
  info.name = name;
  info.spec = *ResolveSpec(test.spec);
  return *AttentionLayer::Create(std::move(info), test.matrices, BestKernelPath());
}

class WorkQueueTest : public ::testing::Test {
 protected:
  std::unique_ptr<WorkItem> Item(int64_t tokens, bool memory = false) {
    auto item = std::make_unique<WorkItem>();
    item->layer = layer_;
    item->input.query_rows = tokens;
    item->input.has_memory = memory;
    return item;
  }
  // A request of `client` that takes `work` multiply-adds.
  std::unique_ptr<WorkItem> Item(const std::string& client, int64_t tokens, double work,
                                 int32_t priority = 0) {
    auto item = Item(tokens);
    item->context.client = client;
    item->work = work;
    item->priority = priority;
    return item;
  }

  absl::Status TryPush(std::unique_ptr<WorkItem> item) { return queue_.Push(&item, clock_.Now()); }
  void Push(std::unique_ptr<WorkItem> item) { ASSERT_TRUE(TryPush(std::move(item)).ok()); }

  WorkQueue::Items TakeItems(const BatchRules& rules) {
    return queue_.TakeBatch(
        rules, clock_.Now(), [this](const WorkItem& item) { return item.Alive(clock_.Now()); },
        &dropped_);
  }
  WorkQueue::Items TakeInterrupt(const InterruptRules& rules) {
    return queue_.TakeInterrupt(
        rules, clock_.Now(), [this](const WorkItem& item) { return item.Alive(clock_.Now()); },
        &dropped_);
  }
  static std::vector<int64_t> Tokens(const WorkQueue::Items& items) {
    std::vector<int64_t> tokens;
    for (const auto& item : items) tokens.push_back(item->input.query_rows);
    return tokens;
  }
  std::vector<int64_t> Take(int64_t max_requests, int64_t max_tokens) {
    return Tokens(TakeItems({.max_requests = max_requests, .max_tokens = max_tokens}));
  }

  // Multiply-adds that each client got of `batches` batches.
  std::map<std::string, double> Serve(int batches) {
    std::map<std::string, double> served;
    for (int i = 0; i < batches; ++i) {
      for (const auto& item : TakeItems({.max_long_work = 5e9, .max_short_work = 1e9})) {
        served[item->context.client] += item->work;
      }
    }
    return served;
  }

  const std::shared_ptr<const AttentionLayer> layer_ = SmallLayer();
  FakeClock clock_;
  WorkQueue queue_{QueueLimits{.tokens = 100, .bytes = 1000}};
  WorkQueue::Dropped dropped_;
};

TEST_F(WorkQueueTest, TakesTheOldestAndWhatFitsBehindIt) {
  for (const int64_t tokens : {10, 20, 30, 5}) Push(Item(tokens));
  EXPECT_THAT(Take(0, 36), ElementsAre(10, 20, 5));
  EXPECT_EQ(queue_.tokens(), 30);
  EXPECT_THAT(Take(0, 36), ElementsAre(30));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(WorkQueueTest, ALargeRequestRidesAlone) {
  for (const int64_t tokens : {50, 1}) Push(Item(tokens));
  EXPECT_THAT(Take(0, 10), ElementsAre(50));
  EXPECT_THAT(Take(0, 10), ElementsAre(1));
}

TEST_F(WorkQueueTest, RequestsAreCounted) {
  for (const int64_t tokens : {1, 2, 3}) Push(Item(tokens));
  EXPECT_THAT(Take(1, 100), ElementsAre(1));
  EXPECT_THAT(Take(2, 100), ElementsAre(2, 3));
}

TEST_F(WorkQueueTest, OnlyTheSameLayerAndShapeOfInputShareAPass) {
  Push(Item(1));
  Push(Item(2, /*memory=*/true));
  auto other = Item(3);
  other->layer = SmallLayer();
  Push(std::move(other));
  Push(Item(4));
  EXPECT_THAT(Take(0, 100), ElementsAre(1, 4));
  EXPECT_THAT(Take(0, 100), ElementsAre(2));
  EXPECT_THAT(Take(0, 100), ElementsAre(3));
}

TEST_F(WorkQueueTest, ExpiredAndCancelledLeaveWithoutABatch) {
  auto expired = Item(1);
  expired->context.deadline = clock_.Now() + absl::Milliseconds(1);
  Push(std::move(expired));
  auto cancelled = Item(2);
  cancelled->context.cancel = std::make_shared<CancelToken>();
  const std::shared_ptr<CancelToken> token = cancelled->context.cancel;
  Push(std::move(cancelled));
  Push(Item(3));
  clock_.Advance(absl::Milliseconds(1));
  token->Cancel();
  EXPECT_THAT(Take(0, 100), ElementsAre(3));
  ASSERT_EQ(dropped_.size(), 2u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(dropped_[0].second));
  EXPECT_TRUE(absl::IsCancelled(dropped_[1].second));
  EXPECT_EQ(queue_.tokens(), 0);
}

TEST_F(WorkQueueTest, TheDeadAreFoundAnywhere) {
  Push(Item(1));
  auto cancelled = Item(2);
  cancelled->context.cancel = std::make_shared<CancelToken>();
  cancelled->context.cancel->Cancel();
  Push(std::move(cancelled));
  queue_.TakeDead(clock_.Now(), &dropped_);
  EXPECT_EQ(dropped_.size(), 1u);
  EXPECT_EQ(queue_.tokens(), 1);
}

TEST_F(WorkQueueTest, FullRefusesAndLeavesTheItem) {
  Push(Item(90));
  auto item = Item(11);
  const absl::Status full = queue_.Push(&item, clock_.Now());
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("at most 100"));
  EXPECT_NE(item, nullptr);
  auto huge = Item(101);
  EXPECT_TRUE(absl::IsResourceExhausted(queue_.Push(&huge, clock_.Now())));
  auto fits = Item(10);
  EXPECT_TRUE(queue_.Push(&fits, clock_.Now()).ok());
}

TEST_F(WorkQueueTest, EmptyRequestsAreBoundedToo) {
  for (int i = 0; i < 100; ++i) Push(Item(0));
  auto one_more = Item(0);
  EXPECT_TRUE(absl::IsResourceExhausted(queue_.Push(&one_more, clock_.Now())));
}

TEST_F(WorkQueueTest, BytesAreBounded) {
  auto large = Item(1);
  large->bytes = 900;
  Push(std::move(large));
  auto more = Item(1);
  more->bytes = 101;
  const absl::Status full = queue_.Push(&more, clock_.Now());
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("at most 1000 bytes"));
  EXPECT_EQ(RefusalOf(full), "QUEUE_FULL");
  auto never = Item(1);
  never->bytes = 1001;
  EXPECT_EQ(RefusalOf(queue_.Push(&never, clock_.Now())), "LIMIT_EXCEEDED");
  EXPECT_THAT(Take(0, 100), ElementsAre(1));
  EXPECT_EQ(queue_.bytes(), 0);
}

TEST_F(WorkQueueTest, ClientsAndLayersHaveBoundsOfTheirOwn) {
  queue_ = WorkQueue(
      QueueLimits{.tokens = 100, .layer_tokens = 50, .client_tokens = 20, .client_requests = 3});
  Push(Item("a", 10, 1));
  EXPECT_EQ(RefusalOf(TryPush(Item("a", 11, 1))), "CLIENT_LIMIT");
  for (int i = 0; i < 2; ++i) Push(Item("a", 1, 1));
  const absl::Status fourth = TryPush(Item("a", 1, 1));
  EXPECT_EQ(RefusalOf(fourth), "CLIENT_LIMIT");
  EXPECT_THAT(std::string(fourth.message()), HasSubstr("at most 3 requests"));
  Push(Item("b", 20, 1));
  const absl::Status layer = TryPush(Item("c", 19, 1));
  EXPECT_EQ(RefusalOf(layer), "LAYER_QUEUE_FULL");
  EXPECT_THAT(std::string(layer.message()), HasSubstr("at most 50 tokens"));
  Push(Item("c", 18, 1));
}

TEST_F(WorkQueueTest, OneAmongSeveralLeavesRoomForTheNext) {
  Push(Item("b", 1, 1));
  int64_t flooded = 0;
  while (TryPush(Item("a", 1, 1)).ok()) ++flooded;
  EXPECT_GT(flooded, 80);
  EXPECT_LT(queue_.tokens(), 100);
  Push(Item("b", 1, 1));
  Push(Item("c", 1, 1));
}

TEST_F(WorkQueueTest, AloneAClientMayFillTheQueue) {
  for (int i = 0; i < 100; ++i) Push(Item("a", 1, 1));
  EXPECT_FALSE(TryPush(Item("b", 1, 1)).ok());
}

TEST_F(WorkQueueTest, ClientsShareByWorkNotByRequests) {
  for (int i = 0; i < 60; ++i) Push(Item("many", 1, 1e9));
  for (int i = 0; i < 10; ++i) Push(Item("few", 1, 4e9));
  const std::map<std::string, double> served = Serve(12);
  EXPECT_NEAR(served.at("many") / served.at("few"), 1.0, 0.25);
}

TEST_F(WorkQueueTest, AClientThatComesBackBeforeTheNextBatchKeepsItsShare) {
  // "slow" always has one request out, and its next arrives a moment after the last was answered:
  // when the next batch has been chosen.
  double slow = 0.0, flood = 0.0;
  for (int round = 0; round < 100; ++round) {
    while (TryPush(Item("flood", 1, 1e9)).ok()) {
    }
    for (const auto& item : TakeItems({.max_long_work = 5e9, .max_short_work = 1e9})) {
      (item->context.client == "slow" ? slow : flood) += item->work;
    }
    if (round % 2 == 0) Push(Item("slow", 1, 1e9));
  }
  EXPECT_GT(slow / (slow + flood), 0.4);
}

TEST_F(WorkQueueTest, LayersShareToo) {
  const std::shared_ptr<const AttentionLayer> other = SmallLayer("other");
  for (int i = 0; i < 40; ++i) Push(Item(absl::StrCat("c", i % 8), 1, 1e9));
  for (int i = 0; i < 40; ++i) {
    auto item = Item("z", 1, 1e9);
    item->layer = other;
    Push(std::move(item));
  }
  const std::map<std::string, double> served = Serve(16);
  double rest = 0.0;
  for (const auto& [client, work] : served) rest += client == "z" ? 0.0 : work;
  EXPECT_GE(served.at("z") / (served.at("z") + rest), 0.4);  // 0.8 of the layer's half
}

TEST_F(WorkQueueTest, MadeUpClientsGetNoMoreThanTheLayersPart) {
  for (int i = 0; i < 50; ++i) Push(Item(absl::StrCat("made up ", i), 1, 1e9));
  EXPECT_THAT(Take(0, 100), ::testing::SizeIs(50));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(WorkQueueTest, PriorityOrdersOneClientsRequests) {
  Push(Item("a", 1, 1));
  Push(Item("a", 2, 1, /*priority=*/5));
  Push(Item("a", 3, 1, /*priority=*/-1));
  Push(Item("b", 4, 1));
  EXPECT_THAT(Take(1, 100), ElementsAre(2));
  EXPECT_THAT(Take(1, 100), ElementsAre(4));  // another client's turn, whatever the priorities
  EXPECT_THAT(Take(1, 100), ElementsAre(1));
  EXPECT_THAT(Take(1, 100), ElementsAre(3));
}

TEST_F(WorkQueueTest, ShortAndLongDoNotShareABatch) {
  Push(Item("a", 1, 1e10));
  Push(Item("a", 2, 1e6));
  Push(Item("a", 3, 1e10));
  Push(Item("a", 4, 1e6));
  EXPECT_THAT(Take(0, 100), ElementsAre(1, 3));
  EXPECT_THAT(Take(0, 100), ElementsAre(2, 4));
}

TEST_F(WorkQueueTest, ABatchIsBoundedInWork) {
  for (const int64_t tokens : {1, 2, 3}) Push(Item("a", tokens, 1e9));
  EXPECT_THAT(Tokens(TakeItems({.max_long_work = 2e9})), ElementsAre(1, 2));
  EXPECT_THAT(Tokens(TakeItems({.max_long_work = 5e8})), ElementsAre(3));
}

TEST_F(WorkQueueTest, OnlyShortOrMoreUrgentRequestsInterrupt) {
  Push(Item("a", 1, 1e10));
  Push(Item("b", 2, 1e8));
  Push(Item("c", 3, 1e6));
  Push(Item("d", 4, 1e9, /*priority=*/1));
  EXPECT_EQ(queue_.short_requests(), 2);
  EXPECT_EQ(queue_.top_long_priority(), 1);
  const InterruptRules rules{.max_work = 1e7, .above_priority = 0, .max_urgent_work = 4e9};
  std::vector<int64_t> taken = Tokens(TakeInterrupt(rules));
  for (const int64_t tokens : Tokens(TakeInterrupt(rules))) taken.push_back(tokens);
  EXPECT_THAT(taken, ::testing::UnorderedElementsAre(3, 4));
  EXPECT_TRUE(TakeInterrupt(rules).empty());
  EXPECT_EQ(queue_.short_requests(), 1);
  EXPECT_EQ(queue_.top_long_priority(), 0);
}

}  // namespace
}  // namespace headwise
