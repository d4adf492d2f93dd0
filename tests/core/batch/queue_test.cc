// SPDX-License-Identifier: Apache-2.0
#include "core/batch/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernel/tile_kernel.h"
#include "tests/support/fake_clock.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const AttentionLayer> SmallLayer() {
  TestLayer test = IdentityLayer(4, 2);
  LayerInfo info;
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

  void Push(std::unique_ptr<WorkItem> item) { ASSERT_TRUE(queue_.Push(&item).ok()); }

  std::vector<int64_t> Take(int64_t max_requests, int64_t max_tokens) {
    std::vector<int64_t> tokens;
    for (const auto& item : queue_.TakeBatch(
             max_requests, max_tokens,
             [this](const WorkItem& item) { return item.Alive(clock_.Now()); }, &dropped_)) {
      tokens.push_back(item->input.query_rows);
    }
    return tokens;
  }

  const std::shared_ptr<const AttentionLayer> layer_ = SmallLayer();
  FakeClock clock_;
  WorkQueue queue_{100};
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
  const absl::Status full = queue_.Push(&item);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("at most 100"));
  EXPECT_NE(item, nullptr);
  auto huge = Item(101);
  EXPECT_TRUE(absl::IsResourceExhausted(queue_.Push(&huge)));
  auto fits = Item(10);
  EXPECT_TRUE(queue_.Push(&fits).ok());
}

TEST_F(WorkQueueTest, EmptyRequestsAreBoundedToo) {
  for (int i = 0; i < 100; ++i) Push(Item(0));
  auto one_more = Item(0);
  EXPECT_TRUE(absl::IsResourceExhausted(queue_.Push(&one_more)));
}

}  // namespace
}  // namespace headwise
