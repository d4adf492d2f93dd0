// SPDX-License-Identifier: Apache-2.0
#include "server/oip_statistics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace headwise {
namespace {

void Set(uint64_t count, absl::Duration time, inference::StatisticDuration* duration) {
  duration->set_count(count);
  duration->set_ns(static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Nanoseconds(time))));
}

}  // namespace

void OipStatistics::RecordSuccess(const PassInfo& pass, absl::Duration total,
                                  absl::Duration encode) {
  MutexLock lock(&mu_);
  Sums& sums = layers_[pass.layer];
  if (sums.version != 0 && sums.version != pass.layer_version) sums = Sums{};
  sums.version = pass.layer_version;
  sums.last = absl::Now();
  sums.sequences += pass.lengths.size();
  sums.passes += 1.0 / static_cast<double>(std::max<int64_t>(1, pass.batch_requests));
  ++sums.successes;
  sums.success += total;
  sums.queue += absl::Microseconds(pass.queue_us);
  sums.pack += absl::Microseconds(pass.pack_us);
  sums.compute += absl::Microseconds(pass.compute_us);
  sums.encode += encode;
}

void OipStatistics::RecordFailure(absl::string_view layer, absl::Duration total) {
  MutexLock lock(&mu_);
  Sums& sums = layers_[std::string(layer)];
  ++sums.failures;
  sums.failure += total;
}

void OipStatistics::Encode(const LayerInfo& info, inference::ModelStatistics* statistics) const {
  statistics->set_name(info.name);
  statistics->set_version(absl::StrCat(info.version));
  inference::InferStatistics* infer = statistics->mutable_inference_stats();
  Sums sums;
  {
    MutexLock lock(&mu_);
    const auto found = layers_.find(info.name);
    if (found != layers_.end()) sums = found->second;
  }
  // Of an earlier version: it has none of its own yet.
  if (sums.version != info.version && sums.version != 0) sums = Sums{};
  if (sums.successes > 0) {
    statistics->set_last_inference(static_cast<uint64_t>(absl::ToUnixMillis(sums.last)));
  }
  statistics->set_inference_count(sums.sequences);
  statistics->set_execution_count(static_cast<uint64_t>(std::llround(sums.passes)));
  Set(sums.successes, sums.success, infer->mutable_success());
  Set(sums.failures, sums.failure, infer->mutable_fail());
  Set(sums.successes, sums.queue, infer->mutable_queue());
  Set(sums.successes, sums.pack, infer->mutable_compute_input());
  Set(sums.successes, sums.compute, infer->mutable_compute_infer());
  Set(sums.successes, sums.encode, infer->mutable_compute_output());
}

void OipStatistics::Forget(absl::string_view layer) {
  MutexLock lock(&mu_);
  const auto found = layers_.find(layer);
  if (found != layers_.end()) layers_.erase(found);
}

}  // namespace headwise
