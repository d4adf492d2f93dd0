// SPDX-License-Identifier: Apache-2.0
#include "core/base/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace headwise {
namespace {

// The folders of `path` under `mount`, from the mount itself down.
void AddFolders(const std::string& mount, absl::string_view path, std::vector<std::string>* dirs) {
  std::string dir = mount;
  dirs->push_back(dir);
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == "..") continue;  // above the cgroup namespace's root
    absl::StrAppend(&dir, "/", part);
    dirs->push_back(dir);
  }
}

// "nr_throttled 12" of a cpu.stat; absent without such a line.
std::optional<int64_t> Figure(absl::string_view text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (fields.size() == 2 && fields[0] == key && absl::SimpleAtoi(fields[1], &value)) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

std::vector<std::string> CgroupFolders(const CgroupPlace& place, absl::string_view controller) {
  std::vector<std::string> dirs;
  const std::string table = ReadSmallFile(place.proc_self_cgroup).value_or("");
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    // "ID:CONTROLLERS:PATH", of which the path may hold colons; version 2 has no controllers.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1].empty()) {
      AddFolders(place.root, fields[2], &dirs);
      AddFolders(place.root + "/unified", fields[2], &dirs);
      continue;
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    // Mounted under the joint name, with a link for each controller, or under one's own name.
    AddFolders(absl::StrCat(place.root, "/", fields[1]), fields[2], &dirs);
    AddFolders(absl::StrCat(place.root, "/", controller), fields[2], &dirs);
  }
  return dirs;
}

std::optional<int64_t> CgroupMemoryBytes(const CgroupPlace& place) {
  // Version 1 writes "no limit" as a number near the largest.
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  std::optional<int64_t> least;
  for (const std::string& dir : CgroupFolders(place, "memory")) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
      int64_t bytes = 0;
      const std::optional<std::string> text = ReadSmallFile(dir + file);
      if (!text || !absl::SimpleAtoi(*text, &bytes) || bytes <= 0 || bytes >= kNoLimit) continue;
      least = std::min(least.value_or(bytes), bytes);
    }
  }
  return least;
}

CpuThrottling ReadCpuThrottling(const CgroupPlace& place) {
  CpuThrottling throttling;
  for (const std::string& dir : CgroupFolders(place, "cpu")) {
    const std::string text = ReadSmallFile(dir + "/cpu.stat").value_or("");
    const std::optional<int64_t> throttled = Figure(text, "nr_throttled");
    if (!throttled || *throttled < throttling.throttled_periods) continue;
    throttling.throttled_periods = *throttled;
    throttling.periods = Figure(text, "nr_periods").value_or(0);
    // Microseconds in version 2, nanoseconds in version 1.
    const std::optional<int64_t> us = Figure(text, "throttled_usec");
    throttling.throttled_us = us ? *us : Figure(text, "throttled_time").value_or(0) / 1000;
  }
  return throttling;
}

int64_t MemoryLimitBytes(const CgroupPlace& place) {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  const int64_t machine = pages > 0 && page_bytes > 0 ? pages * page_bytes : 0;
  const std::optional<int64_t> limit = CgroupMemoryBytes(place);
  if (!limit) return machine;
  return machine > 0 ? std::min(*limit, machine) : *limit;
}

}  // namespace headwise
