// SPDX-License-Identifier: Apache-2.0
// How many compute threads this process should run, and why.
#ifndef HEADWISE_CORE_BASE_CPU_BUDGET_H_
#define HEADWISE_CORE_BASE_CPU_BUDGET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace headwise {

struct CpuBudget {
  int64_t threads = 1;
  std::string source;  // "--threads", "OMP_NUM_THREADS", "cgroup quota 1.5", "cpuset", "affinity"
};

// Where to look; tests point it at a fixture tree.
struct CpuBudgetInputs {
  std::optional<int64_t> flag_threads;         // --threads
  std::optional<std::string> omp_num_threads;  // the variable's text, if set
  std::string proc_self_cgroup = "/proc/self/cgroup";
  std::string cgroup_root = "/sys/fs/cgroup";
  std::optional<int64_t> affinity_cpus;  // absent: sched_getaffinity
};

// The first that is given: flag, OMP_NUM_THREADS (its first number), else the smallest of the
// tightest CPU quota of all visible cgroup ancestors (v1 and v2; rounded down, at least 1), the
// cpuset and the affinity mask. INVALID_ARGUMENT for a flag below 1 or above 1024; an
// OMP_NUM_THREADS that is no such number is passed over.
absl::StatusOr<CpuBudget> ChooseCpuBudget(const CpuBudgetInputs& inputs);

// The CPUs that this thread may run on, ascending; empty if the system won't say.
std::vector<int> AffinityCpus();

// The inputs of this process.
CpuBudgetInputs SystemCpuBudgetInputs(std::optional<int64_t> flag_threads);

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_CPU_BUDGET_H_
