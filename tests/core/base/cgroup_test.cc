// SPDX-License-Identifier: Apache-2.0
#include "core/base/cgroup.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

// A tree of cgroup files of either version.
class CgroupTree {
 public:
  explicit CgroupTree(const std::string& proc_self_cgroup)
      : place_{dir_.Write("proc", proc_self_cgroup), dir_.path()} {}
  CgroupTree& File(const std::string& path, const std::string& text) {
    dir_.Write(path, text);
    return *this;
  }
  const CgroupPlace& place() const { return place_; }

 private:
  TempDir dir_;
  const CgroupPlace place_;
};

TEST(Cgroup, MemoryIsTheTightestOfAllAncestorsV2) {
  CgroupTree tree("0::/pods/one\n");
  tree.File("memory.max", "max\n")
      .File("pods/memory.max", "3000000\n")
      .File("pods/one/memory.max", "5000000\n");
  EXPECT_EQ(CgroupMemoryBytes(tree.place()), 3000000);
  EXPECT_EQ(MemoryLimitBytes(tree.place()), 3000000);
}

TEST(Cgroup, MemoryV1AndNoLimitAsANumber) {
  CgroupTree tree("5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n");
  tree.File("memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(CgroupMemoryBytes(tree.place()), std::nullopt);
  EXPECT_GT(MemoryLimitBytes(tree.place()), 1 << 20);  // the machine's
  tree.File("memory/docker/x/memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(CgroupMemoryBytes(tree.place()), 1048576);
}

TEST(Cgroup, ThrottlingOfEitherVersion) {
  CgroupTree v2("0::/one\n");
  v2.File("one/cpu.stat", "usage_usec 10\nnr_periods 7\nnr_throttled 3\nthrottled_usec 4500\n");
  EXPECT_EQ(ReadCpuThrottling(v2.place()).periods, 7);
  EXPECT_EQ(ReadCpuThrottling(v2.place()).throttled_periods, 3);
  EXPECT_EQ(ReadCpuThrottling(v2.place()).throttled_us, 4500);
  CgroupTree v1("3:cpu,cpuacct:/docker/x\n");
  v1.File("cpu,cpuacct/docker/x/cpu.stat",
          "nr_periods 9\nnr_throttled 2\nthrottled_time 7000000\n");
  EXPECT_EQ(ReadCpuThrottling(v1.place()).throttled_periods, 2);
  EXPECT_EQ(ReadCpuThrottling(v1.place()).throttled_us, 7000);
  EXPECT_EQ(ReadCpuThrottling({"/nonexistent", "/nonexistent"}).throttled_periods, 0);
}

}  // namespace
}  // namespace headwise
