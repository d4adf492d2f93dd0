// SPDX-License-Identifier: Apache-2.0
#include "core/base/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

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

// A small file's text without the white space around it; absent if it can't be read.
std::optional<std::string> ReadText(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

std::optional<double> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadText(path);
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
  const std::optional<std::string> text = ReadText(dir + "/cpu.max");
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
  const std::optional<std::string> text = ReadText(file);
  if (!text) return;
  if (const std::optional<int64_t> cpus = CountCpuList(*text)) limits->TightenCpuset(*cpus);
}

// The folders of `path` under `mount`, from the mount itself down. A part of the path may not be
// visible here (a container sees its own cgroup as the mount): reading from it finds nothing.
std::vector<std::string> Ancestors(const std::string& mount, absl::string_view path) {
  std::vector<std::string> dirs = {mount};
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == "..") continue;  // above the cgroup namespace's root
    dirs.push_back(absl::StrCat(dirs.back(), "/", part));
  }
  return dirs;
}

void ReadHierarchyV2(const std::string& mount, absl::string_view path, CgroupLimits* limits) {
  for (const std::string& dir : Ancestors(mount, path)) {
    ReadQuotaV2(dir, limits);
    ReadCpuset(dir + "/cpuset.cpus.effective", limits);
  }
}

void ReadHierarchyV1(const std::string& root, absl::string_view controllers, absl::string_view path,
                     CgroupLimits* limits) {
  for (const absl::string_view controller : absl::StrSplit(controllers, ',')) {
    if (controller != "cpu" && controller != "cpuset") continue;
    // Mounted under the joint name, with a link for each controller, or under one controller's
    // name.
    for (const absl::string_view name : {controllers, controller}) {
      for (const std::string& dir : Ancestors(absl::StrCat(root, "/", name), path)) {
        if (controller == "cpu") ReadQuotaV1(dir, limits);
        if (controller == "cpuset") ReadCpuset(dir + "/cpuset.cpus", limits);
      }
    }
  }
}

CgroupLimits ReadCgroupLimits(const CpuBudgetInputs& inputs) {
  CgroupLimits limits;
  const std::string table = ReadText(inputs.proc_self_cgroup).value_or("");
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    // "ID:CONTROLLERS:PATH", of which the path may hold colons; version 2 has no controllers.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1].empty()) {
      ReadHierarchyV2(inputs.cgroup_root, fields[2], &limits);
      ReadHierarchyV2(inputs.cgroup_root + "/unified", fields[2], &limits);
    } else {
      ReadHierarchyV1(inputs.cgroup_root, fields[1], fields[2], &limits);
    }
  }
  return limits;
}

int64_t AffinityCpus() {
  // The kernel refuses a mask that is too small for the machine, so it grows until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int64_t count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
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
  CpuBudget budget{inputs.affinity_cpus ? *inputs.affinity_cpus : AffinityCpus(), "affinity"};
  const CgroupLimits limits = ReadCgroupLimits(inputs);
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
