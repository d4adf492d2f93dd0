// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_OIP_STATISTICS_H_
#define HEADWISE_SERVER_OIP_STATISTICS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/layer/layer_info.h"
#include "core/request.h"
#include "inference/inference.pb.h"

namespace headwise {

// What ModelStatistics tells: sums over the ModelInfer calls to each loaded layer. A new version
// of a layer starts anew. Thread-safe.
class OipStatistics {
 public:
  void RecordSuccess(const PassInfo& pass, absl::Duration total, absl::Duration encode);
  // For a layer that has answered before, or is about to: `layer` is loaded.
  void RecordFailure(absl::string_view layer, absl::Duration total);

  void Encode(const LayerInfo& info, inference::ModelStatistics* statistics) const;
  void Forget(absl::string_view layer);

 private:
  struct Sums {
    int64_t version = 0;
    absl::Time last;
    uint64_t sequences = 0;
    double passes = 0;  // a call's share of its pass
    uint64_t successes = 0, failures = 0;
    absl::Duration success, failure, queue, pack, compute, encode;
  };

  mutable Mutex mu_;
  std::map<std::string, Sums, std::less<>> layers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_OIP_STATISTICS_H_
