// SPDX-License-Identifier: Apache-2.0
#include "core/base/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/cgroup.h"

namespace headwise {
namespace {

constexpr int64_t kMaxThreads = 1024;

// What the cgroups that this process is in allow; absent: no limit seen.
struct CgroupLimits {
  std::optional<double> quota_cpus;
  std::optional<int64_t> cpuset_cpus;

  void TightenQuota(double cpus) { quota_cpus = std::min(quota_cpus.value_or(cpus), cpus); }
  void TightenCpuset(int64_t cpus) { cpuset_cpus = std::min(cpuset_cpus.value_or(cpus), cpus); }
};

std::optional<double> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadSmallFile(path);
  double value = 0;
  if (!text || !absl::SimpleAtod(*text, &value)) return std::nullopt;
  return value;
}

// CPUs in a list such as "0-3,8"; absent for an empty list (no limit of its own) or another text.
std::optional<int64_t> CountCpuList(absl::string_view list) {
  int64_t count = 0;
  for (const absl::string_view part : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int64_t first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last > 1 << 20) {
      return std::nullopt;
    }
    count += last - first + 1;
  }
  if (count == 0) return std::nullopt;
  return count;
}

void TightenQuota(double quota, double period, CgroupLimits* limits) {
  if (quota > 0 && period > 0) limits->TightenQuota(quota / period);
}

// cpu.max of version 2: "max 100000" or "150000 100000".
void ReadQuotaV2(const std::string& dir, CgroupLimits* limits) {
  const std::optional<std::string> text = ReadSmallFile(dir + "/cpu.max");
  if (!text) return;
  const std::vector<absl::string_view> fields = absl::StrSplit(*text, ' ', absl::SkipEmpty());
  double quota = 0, period = 0;
  if (fields.size() == 2 && absl::SimpleAtod(fields[0], &quota) &&
      absl::SimpleAtod(fields[1], &period)) {
    TightenQuota(quota, period, limits);
  }
}

void ReadQuotaV1(const std::string& dir, CgroupLimits* limits) {
  const std::optional<double> quota = ReadNumber(dir + "/cpu.cfs_quota_us");
  const std::optional<double> period = ReadNumber(dir + "/cpu.cfs_period_us");
  if (quota && period) TightenQuota(*quota, *period, limits);
}

void ReadCpuset(const std::string& file, CgroupLimits* limits) {
  const std::optional<std::string> text = ReadSmallFile(file);
  if (!text) return;
  if (const std::optional<int64_t> cpus = CountCpuList(*text)) limits->TightenCpuset(*cpus);
}

CgroupLimits ReadCgroupLimits(const CgroupPlace& place) {
  CgroupLimits limits;
  for (const std::string& dir : CgroupFolders(place, "cpu")) {
    ReadQuotaV1(dir, &limits);
    ReadQuotaV2(dir, &limits);
  }
  for (const std::string& dir : CgroupFolders(place, "cpuset")) {
    ReadCpuset(dir + "/cpuset.cpus", &limits);            // version 1
    ReadCpuset(dir + "/cpuset.cpus.effective", &limits);  // version 2
  }
  return limits;
}

int64_t AffinityCount() {
  const size_t cpus = AffinityCpus().size();
  return cpus > 0 ? static_cast<int64_t>(cpus)
                  : std::max<int64_t>(1, std::thread::hardware_concurrency());
}

// OMP_NUM_THREADS may be a list, one number a nesting level: the first counts.
std::optional<int64_t> ParseOmpThreads(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const std::vector<absl::string_view> levels = absl::StrSplit(*text, ',');
  int64_t threads = 0;
  if (!absl::SimpleAtoi(levels.front(), &threads) || threads < 1 || threads > kMaxThreads) {
    return std::nullopt;
  }
  return threads;
}

}  // namespace

std::vector<int> AffinityCpus() {
  std::vector<int> allowed;
  // The kernel refuses a mask that is too small for the machine, so it grows until it fits.
  for (int cpus = 1024; cpus <= 1 << 20 && allowed.empty(); cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) allowed.push_back(cpu);
    }
    CPU_FREE(set);
  }
  return allowed;
}

absl::StatusOr<CpuBudget> ChooseCpuBudget(const CpuBudgetInputs& inputs) {
  if (inputs.flag_threads) {
    if (*inputs.flag_threads < 1 || *inputs.flag_threads > kMaxThreads) {
      return absl::InvalidArgumentError(
          absl::StrCat("threads: must be 1 to ", kMaxThreads, "; was ", *inputs.flag_threads));
    }
    return CpuBudget{*inputs.flag_threads, "--threads"};
  }
  if (const std::optional<int64_t> threads = ParseOmpThreads(inputs.omp_num_threads)) {
    return CpuBudget{*threads, "OMP_NUM_THREADS"};
  }
  CpuBudget budget{inputs.affinity_cpus ? *inputs.affinity_cpus : AffinityCount(), "affinity"};
  const CgroupLimits limits = ReadCgroupLimits({inputs.proc_self_cgroup, inputs.cgroup_root});
  if (limits.cpuset_cpus && *limits.cpuset_cpus < budget.threads) {
    budget = {*limits.cpuset_cpus, "cpuset"};
  }
  if (limits.quota_cpus && *limits.quota_cpus <= static_cast<double>(budget.threads)) {
    budget = {static_cast<int64_t>(std::floor(*limits.quota_cpus)),
              absl::StrCat("cgroup quota ", *limits.quota_cpus)};
  }
  budget.threads = std::clamp<int64_t>(budget.threads, 1, kMaxThreads);
  return budget;
}

CpuBudgetInputs SystemCpuBudgetInputs(std::optional<int64_t> flag_threads) {
  CpuBudgetInputs inputs;
  inputs.flag_threads = flag_threads;
  if (const char* const text = std::getenv("OMP_NUM_THREADS")) inputs.omp_num_threads = text;
  return inputs;
}

}  // namespace headwise
