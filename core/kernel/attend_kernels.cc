// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/attend_kernels.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/mutex.h"

namespace headwise {
namespace {

absl::StatusOr<std::shared_ptr<const AttendKernels>> Compile(KernelPath path, int64_t dk,
                                                             int64_t dv) {
  auto kernels = std::make_shared<AttendKernels>();
  for (int h = 0; h < AttendKernels::kHeights; ++h) {
    const int64_t rows = AttendKernels::kRows[static_cast<size_t>(h)];
    for (int w = 0; w < AttendKernels::kWidths; ++w) {
      const int64_t keys = (w + 1) * kKeyStep;
      auto scores =
          GetTileKernel(path, {.m = rows, .n = keys, .k = dk, .lda = dk, .ldb = keys, .ldc = keys});
      if (!scores.ok()) return scores.status();
      auto output = GetTileKernel(
          path,
          {.m = rows, .n = dv, .k = keys, .lda = keys, .ldb = dv, .ldc = dv, .accumulate = true});
      if (!output.ok()) return output.status();
      kernels->scores[static_cast<size_t>(h)][static_cast<size_t>(w)] = *std::move(scores);
      kernels->output[static_cast<size_t>(h)][static_cast<size_t>(w)] = *std::move(output);
    }
  }
  return kernels;
}

struct Cache {
  Mutex mu;
  std::map<std::tuple<KernelPath, int64_t, int64_t>, std::weak_ptr<const AttendKernels>> sets
      ABSL_GUARDED_BY(mu);
};

}  // namespace

int AttendKernels::Height(int64_t rows) {
  return static_cast<int>(std::lower_bound(kRows.begin(), kRows.end(), rows) - kRows.begin());
}

absl::StatusOr<std::shared_ptr<const AttendKernels>> GetAttendKernels(KernelPath path, int64_t dk,
                                                                      int64_t dv) {
  static Cache* const cache = new Cache;
  MutexLock lock(&cache->mu);
  std::weak_ptr<const AttendKernels>& slot = cache->sets[{path, dk, dv}];
  if (std::shared_ptr<const AttendKernels> known = slot.lock()) return known;
  auto made = Compile(path, dk, dv);
  if (made.ok()) slot = *made;
  return made;
}

}  // namespace headwise
