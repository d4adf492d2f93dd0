// SPDX-License-Identifier: Apache-2.0
#include "core/base/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace headwise {
namespace {

using ::testing::Each;

class WorkerPoolOf : public ::testing::TestWithParam<int> {};

TEST_P(WorkerPoolOf, RunsEveryTaskOnceWhateverTheirNumber) {
  WorkerPool pool(GetParam());
  for (int64_t count = 0; count < 40; ++count) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
    pool.Run(count, [&](int64_t i, int) { runs[static_cast<size_t>(i)].fetch_add(1); });
    std::vector<int> counted(runs.begin(), runs.end());
    EXPECT_THAT(counted, Each(1)) << count;
  }
}

TEST_P(WorkerPoolOf, RunsWhatItSaidWasUpcoming) {
  constexpr int64_t kCount = 200;
  WorkerPool pool(GetParam());
  std::vector<int64_t> announced(static_cast<size_t>(pool.threads()), -1);
  std::atomic<int64_t> kept{0}, broken{0};
  for (int run = 0; run < 3; ++run) {
    std::fill(announced.begin(), announced.end(), -1);
    pool.Run(kCount, [&](int64_t i, int worker) {
      int64_t& mine = announced[static_cast<size_t>(worker)];
      if (mine >= 0) (mine == i ? kept : broken).fetch_add(1);
      mine = pool.Upcoming(worker);
      if (mine >= kCount) broken.fetch_add(1);
    });
  }
  EXPECT_EQ(broken.load(), 0);
  EXPECT_GT(kept.load(), kCount);  // of 3 * kCount
}

// Helpers come to a job of few tasks too late, and find the next one.
TEST_P(WorkerPoolOf, ShortJobsFollowEachOther) {
  WorkerPool pool(GetParam());
  int64_t under_way = 0;
  std::atomic<int64_t> of_another_job{0};
  for (int64_t job = 0; job < 20'000; ++job) {
    const int64_t count = 1 + job % 7;
    under_way = job;
    std::atomic<int64_t> sum{0};
    pool.Run(count, [&, job](int64_t i, int) {
      if (under_way != job) of_another_job.fetch_add(1);
      sum.fetch_add(i + 1);
    });
    ASSERT_EQ(sum.load(), count * (count + 1) / 2) << job;
  }
  EXPECT_EQ(of_another_job.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolOf, ::testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace headwise
