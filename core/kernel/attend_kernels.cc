// SPDX-License-Identifier: Apache-2.0
#include "core/kernel/attend_kernels.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/mutex.h"

namespace headwise {
namespace {

struct Cache {
  Mutex mu;
  std::map<std::tuple<KernelPath, TileType, int64_t, int64_t>, std::weak_ptr<const AttendKernels>>
      sets ABSL_GUARDED_BY(mu);
};

}  // namespace

absl::StatusOr<std::shared_ptr<const AttendKernels>> AttendKernels::Create(KernelPath path,
                                                                           TileType type,
                                                                           int64_t dk, int64_t dv) {
  auto kernels = std::make_shared<AttendKernels>();
  const auto make = [&](const TileShape& shape,
                        std::shared_ptr<const TileKernel>* place) -> absl::Status {
    auto made = GetTileKernel(path, shape);
    if (!made.ok()) return made.status();
    *place = *std::move(made);
    return absl::OkStatus();
  };
  absl::Status status;
  for (size_t h = 0; h < kHeights && status.ok(); ++h) {
    TileShape scores{.type = type, .m = kRows[h], .k = dk, .lda = dk, .ldc = kScoreStride};
    for (size_t panel = 0; panel < kPanelWidths; ++panel) {
      for (size_t keys = 0; keys <= panel && status.ok(); ++keys) {
        scores.ldb = static_cast<int64_t>(panel + 1) * kKeyStep;
        scores.n = static_cast<int64_t>(keys + 1) * kKeyStep;
        status = make(scores, &kernels->scores_[h][panel][keys]);
      }
    }
    const int64_t features = FeaturesInRows(dv);
    TileShape output{.type = type,
                     .m = kRows[h],
                     .n = features,
                     .lda = kScoreStride,
                     .ldb = features,
                     .ldc = PadFeatures(dv)};
    output.accumulate = true;
    for (size_t panels = 0; panels < kBlockWidths && status.ok(); ++panels) {
      output.k = static_cast<int64_t>(panels + 1) * kKeyPanel;
      status = make(output, &kernels->output_[h][panels]);
    }
    for (size_t steps = 0; steps < kRestWidths && status.ok(); ++steps) {
      output.k = static_cast<int64_t>(steps + 1) * kRestStep;
      status = make(output, &kernels->output_rest_[h][steps]);
    }
  }
  if (!status.ok()) return status;
  return kernels;
}

size_t AttendKernels::Height(int64_t rows) {
  return static_cast<size_t>(std::lower_bound(kRows.begin(), kRows.end(), rows) - kRows.begin());
}

absl::StatusOr<std::shared_ptr<const AttendKernels>> GetAttendKernels(KernelPath path,
                                                                      TileType type, int64_t dk,
                                                                      int64_t dv) {
  static Cache* const cache = new Cache;
  MutexLock lock(&cache->mu);
  std::weak_ptr<const AttendKernels>& slot = cache->sets[{path, type, dk, dv}];
  if (std::shared_ptr<const AttendKernels> known = slot.lock()) return known;
  auto made = AttendKernels::Create(path, type, dk, dv);
  if (made.ok()) slot = *made;
  return made;
}

}  // namespace headwise
