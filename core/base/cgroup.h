// SPDX-License-Identifier: Apache-2.0
// What the cgroups of this process allow and have done to it. Versions 1 and 2, every ancestor that
// can be seen from here.
#ifndef HEADWISE_CORE_BASE_CGROUP_H_
#define HEADWISE_CORE_BASE_CGROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace headwise {

// Where to look; tests point it at a fixture tree.
struct CgroupPlace {
  std::string proc_self_cgroup = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

// A small file's text without the white space around it; absent if it can't be read.
std::optional<std::string> ReadSmallFile(const std::string& path);

// Folders that may hold the files of `controller` ("cpu", "cpuset", "memory"), from the mounts
// down to this process's own. Some may not exist: a container sees its own cgroup as the mount.
std::vector<std::string> CgroupFolders(const CgroupPlace& place, absl::string_view controller);

// The tightest memory limit; absent: none, or none that can be seen.
std::optional<int64_t> CgroupMemoryBytes(const CgroupPlace& place);

// How often the CPU quota has stopped this process's cgroup, and for how long. Zeros without one.
struct CpuThrottling {
  int64_t periods = 0;            // in which there was something to run
  int64_t throttled_periods = 0;  // in which the quota ran out
  int64_t throttled_us = 0;
};
CpuThrottling ReadCpuThrottling(const CgroupPlace& place);

// What this process may use: the tightest cgroup limit, or the machine's memory. 0: unknown.
int64_t MemoryLimitBytes(const CgroupPlace& place);

}  // namespace headwise

#endif  // HEADWISE_CORE_BASE_CGROUP_H_
