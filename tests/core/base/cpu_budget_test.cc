// SPDX-License-Identifier: Apache-2.0
#include "core/base/cpu_budget.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

// A machine of 16 CPUs whose cgroup files are a test's own.
struct Machine {
  explicit Machine(absl::string_view cgroup_table) {
    inputs.proc_self_cgroup = dir.Write("cgroup", cgroup_table);
    inputs.cgroup_root = dir.path();
    inputs.affinity_cpus = 16;
  }
  void Write(absl::string_view name, absl::string_view text) { dir.Write(name, text); }

  CpuBudget Choose() const {
    const absl::StatusOr<CpuBudget> budget = ChooseCpuBudget(inputs);
    EXPECT_TRUE(budget.ok()) << budget.status();
    return budget.value_or(CpuBudget{-1, ""});
  }

  TempDir dir;
  CpuBudgetInputs inputs;
};

TEST(Cases, S10_QuotaOf2) {
  Machine machine("0::/pod/server\n");
  machine.Write("pod/server/cpu.max", "200000 100000\n");
  EXPECT_EQ(machine.Choose().threads, 2);
  EXPECT_EQ(machine.Choose().source, "cgroup quota 2");
}

TEST(Cases, S10_QuotaOf1AndAHalf) {
  Machine machine("0::/pod/server\n");
  machine.Write("pod/server/cpu.max", "150000 100000\n");
  EXPECT_EQ(machine.Choose().threads, 1);
  EXPECT_EQ(machine.Choose().source, "cgroup quota 1.5");
}

TEST(Cases, S10_Cpuset) {
  Machine machine("0::/pod/server\n");
  machine.Write("pod/server/cpu.max", "max 100000\n");
  machine.Write("pod/server/cpuset.cpus.effective", "0-1\n");
  EXPECT_EQ(machine.Choose().threads, 2);
  EXPECT_EQ(machine.Choose().source, "cpuset");
}

TEST(Cases, S10_NoLimitTakesAllOfTheAffinity) {
  Machine machine("0::/\n");
  machine.Write("cpu.max", "max 100000\n");
  machine.Write("cpuset.cpus.effective", "0-15\n");
  EXPECT_EQ(machine.Choose().threads, 16);
  EXPECT_EQ(machine.Choose().source, "affinity");
}

TEST(Cases, S10_OmpNumThreads) {
  Machine machine("0::/\n");
  machine.Write("cpu.max", "200000 100000\n");
  machine.inputs.omp_num_threads = "5";
  EXPECT_EQ(machine.Choose().threads, 5);
  EXPECT_EQ(machine.Choose().source, "OMP_NUM_THREADS");
}

TEST(CpuBudget, FlagWinsOverEverything) {
  Machine machine("0::/\n");
  machine.Write("cpu.max", "200000 100000\n");
  machine.inputs.omp_num_threads = "5";
  machine.inputs.flag_threads = 7;
  EXPECT_EQ(machine.Choose().threads, 7);
  EXPECT_EQ(machine.Choose().source, "--threads");
}

TEST(CpuBudget, FlagOutOfRange) {
  Machine machine("0::/\n");
  for (const int64_t threads : {int64_t{0}, int64_t{-1}, int64_t{1025}}) {
    machine.inputs.flag_threads = threads;
    const absl::Status status = ChooseCpuBudget(machine.inputs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), absl::StrCat("threads: must be 1 to 1024; was ", threads));
  }
}

TEST(CpuBudget, OmpNumThreadsThatIsNoNumberIsPassedOver) {
  Machine machine("0::/\n");
  for (const char* text : {"", "0", "-2", "many", "1025", ",3"}) {
    machine.inputs.omp_num_threads = text;
    EXPECT_EQ(machine.Choose().threads, 16) << text;
  }
  machine.inputs.omp_num_threads = " 3 ,2";
  EXPECT_EQ(machine.Choose().threads, 3);
}

TEST(CpuBudget, TightestAncestorCounts) {
  Machine machine("0::/a/b/c\n");
  machine.Write("a/cpu.max", "300000 100000\n");
  machine.Write("a/b/cpu.max", "max 100000\n");
  machine.Write("a/b/c/cpu.max", "800000 100000\n");
  EXPECT_EQ(machine.Choose().threads, 3);
}

TEST(CpuBudget, ContainerSeesItsOwnCgroupAsTheMount) {
  Machine machine("0::/../../system.slice/docker-1.scope\n");
  machine.Write("cpu.max", "200000 100000\n");
  EXPECT_EQ(machine.Choose().threads, 2);
}

TEST(CpuBudget, Version1) {
  Machine machine("5:cpuset:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/box\n");
  machine.Write("cpu,cpuacct/box/cpu.cfs_quota_us", "400000\n");
  machine.Write("cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  machine.Write("cpuset/box/cpuset.cpus", "0-2,8,10-11\n");
  EXPECT_EQ(machine.Choose().threads, 4);
  machine.Write("cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(machine.Choose().threads, 6);
  EXPECT_EQ(machine.Choose().source, "cpuset");
}

TEST(CpuBudget, Version1UnderTheControllersOwnName) {
  Machine machine("4:cpu,cpuacct:/not/visible/here\n");
  machine.Write("cpu/cpu.cfs_quota_us", "250000\n");
  machine.Write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.Choose().threads, 2);
  EXPECT_EQ(machine.Choose().source, "cgroup quota 2.5");
}

TEST(CpuBudget, HybridMount) {
  Machine machine("0::/box\n");
  machine.Write("unified/box/cpu.max", "100000 100000\n");
  EXPECT_EQ(machine.Choose().threads, 1);
}

TEST(CpuBudget, SmallQuotaStillGivesOneThread) {
  Machine machine("0::/\n");
  machine.Write("cpu.max", "50000 100000\n");
  EXPECT_EQ(machine.Choose().threads, 1);
}

TEST(CpuBudget, AffinityBelowTheQuota) {
  Machine machine("0::/\n");
  machine.Write("cpu.max", "800000 100000\n");
  machine.inputs.affinity_cpus = 3;
  EXPECT_EQ(machine.Choose().threads, 3);
  EXPECT_EQ(machine.Choose().source, "affinity");
}

TEST(CpuBudget, NonsenseInTheFilesIsNoLimit) {
  Machine machine("0::/\nnonsense\n::\n");
  for (const char* text : {"", "max", "a b", "-5 100000", "100000 0", "nan nan"}) {
    machine.Write("cpu.max", text);
    EXPECT_EQ(machine.Choose().threads, 16) << text;
  }
  for (const char* text : {"", "x", "3-1", "0-", "-1", "0-99999999999999999999"}) {
    machine.Write("cpuset.cpus.effective", text);
    EXPECT_EQ(machine.Choose().threads, 16) << text;
  }
}

TEST(CpuBudget, ThisMachine) {
  CpuBudgetInputs inputs = SystemCpuBudgetInputs(std::nullopt);
  inputs.omp_num_threads.reset();
  const absl::StatusOr<CpuBudget> budget = ChooseCpuBudget(inputs);
  ASSERT_TRUE(budget.ok()) << budget.status();
  EXPECT_GE(budget->threads, 1);
  EXPECT_FALSE(budget->source.empty());
}

}  // namespace
}  // namespace headwise
