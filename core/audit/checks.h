// SPDX-License-Identifier: Apache-2.0
// The checks of a served layer: numbers, shapes, axes, heads and ablations, each with its bound.
#ifndef HEADWISE_CORE_AUDIT_CHECKS_H_
#define HEADWISE_CORE_AUDIT_CHECKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/dtype.h"
#include "core/kernel/kernel_path.h"
#include "core/layer/derive.h"
#include "core/layer/layer_info.h"
#include "core/request.h"

namespace headwise {

struct AuditCheck {
  std::string id;
  std::string compared;  // what with what, in words
  double error = 0.0;    // |difference| where it is furthest from its bound
  double bound = 0.0;    // there
  std::string bound_source;
  bool passed = false;
};

// What is audited. Calls wait for their answer; not on a compute thread.
class AuditTarget {
 public:
  virtual ~AuditTarget() = default;
  using Outputs = std::map<std::string, NamedOutput>;

  // The served layer.
  virtual absl::StatusOr<Outputs> Forward(const AttentionInput& input, uint32_t outputs) = 0;
  // Its y with `heads` (ids) zeroed.
  virtual absl::StatusOr<std::vector<float>> AblatedY(const AttentionInput& input,
                                                      const std::vector<int64_t>& heads) = 0;
  // y of another layer, `fused`: q, k and v stored as one, in numbers and on a kernel of one's
  // choice.
  virtual absl::StatusOr<std::vector<float>> OtherY(const LayerParts& layer, bool fused,
                                                    DType dtype, KernelPath kernel,
                                                    const AttentionInput& input) = 0;
  // The kernels that run here.
  virtual std::vector<KernelPath> Kernels() const = 0;
};

struct CheckOptions {
  std::function<void(absl::string_view stage, int64_t done, int64_t total)> progress;  // or empty
  std::function<bool()> stop;                                                          // or empty
};

// The checks in the order in which a two-head layer is audited: projections, stages against the
// float64 reference, kernels and dtypes, shapes, axes, permutations, ablations, batch. `parts` are
// the numbers that the layer `info` was made from; `input` passed ValidateInput. What a forward
// refuses is the answer; CANCELLED where `stop` says so.
absl::StatusOr<std::vector<AuditCheck>> CheckServedLayer(const LayerInfo& info,
                                                         const LayerParts& parts,
                                                         const AttentionInput& input,
                                                         AuditTarget* target,
                                                         const CheckOptions& options);

// A probe for an audit that brings no input: two sequences of 5 and 9 tokens, x independent N(0,
// 1), with a memory where the layer needs one. `owner` holds the numbers.
AttentionInput AuditProbe(const LayerSpec& spec);

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_CHECKS_H_
