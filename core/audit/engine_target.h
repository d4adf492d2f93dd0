// SPDX-License-Identifier: Apache-2.0
// A layer of an engine, to be audited.
#ifndef HEADWISE_CORE_AUDIT_ENGINE_TARGET_H_
#define HEADWISE_CORE_AUDIT_ENGINE_TARGET_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/audit/checks.h"
#include "core/engine.h"

namespace headwise {

// Asks `engine` for the served layer; other layers are loaded into engines of its own with one
// thread, so that nobody else sees them (an answer's bits don't depend on threads). Not
// thread-safe.
class EngineTarget final : public AuditTarget {
 public:
  // `engine` must outlive it. `context` goes with every request to it.
  EngineTarget(Engine* engine, std::string layer, int64_t version, RequestContext context)
      : engine_(*engine),
        layer_(std::move(layer)),
        version_(version),
        context_(std::move(context)) {}

  absl::StatusOr<Outputs> Forward(const AttentionInput& input, uint32_t outputs) override;
  absl::StatusOr<std::vector<float>> AblatedY(const AttentionInput& input,
                                              const std::vector<int64_t>& heads) override;
  absl::StatusOr<std::vector<float>> OtherY(const LayerParts& layer, bool fused, DType dtype,
                                            KernelPath kernel,
                                            const AttentionInput& input) override;
  std::vector<KernelPath> Kernels() const override { return engine_.available_kernels(); }

 private:
  Engine& engine_;
  const std::string layer_;
  const int64_t version_;
  const RequestContext context_;
  std::map<KernelPath, std::unique_ptr<Engine>> own_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_ENGINE_TARGET_H_
