// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_TESTS_SERVER_FAKE_ENGINE_H_
#define HEADWISE_TESTS_SERVER_FAKE_ENGINE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine.h"

namespace headwise {

// An Engine without kernels: layers are kept by name; a forward answers y = x, for p the same
// weight on every key and for contributions x of every head; an ablation has one effect per
// ablation. Both tell that they are queued and, once they run, that they have attended. With the
// slot held, requests wait until Release, cancelled and expired ones until CancelQueued, as the
// real engine's do. Thread-safe.
class FakeEngine final : public Engine {
 public:
  ~FakeEngine() override { Release(); }

  absl::StatusOr<LayerInfo> LoadLayer(const LoadOptions& options, const LayerSpec& spec,
                                      const std::vector<RoleTensor>& tensors) override;
  absl::StatusOr<LayerInfo> UnloadLayer(absl::string_view name) override;
  absl::StatusOr<LayerInfo> GetLayer(absl::string_view name) const override;
  std::vector<LayerInfo> ListLayers() const override;
  void Forward(ForwardRequest request, ForwardDone done) override;
  void Ablate(AblateRequest request, AblateDone done) override;
  void CancelQueued() override;
  void RunExclusive(const std::function<void()>& job) override { job(); }
  EngineStats stats() const override;
  const CpuBudget& cpu_budget() const override { return budget_; }
  const EngineLimits& limits() const override { return limits_; }
  KernelPath kernel() const override { return KernelPath::kPrimitive; }
  std::vector<KernelPath> available_kernels() const override { return {KernelPath::kPrimitive}; }

  // From now on requests wait.
  void Hold();
  // Answers what waits, and no longer holds.
  void Release();
  // Returns once `count` requests wait.
  void AwaitWaiting(size_t count);
  size_t waiting() const;
  // Of the last request that came.
  RequestContext last_context() const;

  // A layer that needs no tensors; `spec` is resolved, or nobody looks at it.
  void AddLayer(const std::string& name, const LayerSpec& spec = {});

 private:
  struct Waiting {
    RequestContext context;
    std::function<void(absl::Status)> answer;
  };
  // Answers now, or later if held.
  void Submit(const std::string& layer, const RequestContext& context, int64_t answer_bytes,
              std::function<void(absl::Status)> answer);

  const CpuBudget budget_{2, "the test"};
  const EngineLimits limits_;
  mutable Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, LayerInfo, std::less<>> layers_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t, std::less<>> versions_ ABSL_GUARDED_BY(mu_);
  RequestContext last_context_ ABSL_GUARDED_BY(mu_);
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  EngineStats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SERVER_FAKE_ENGINE_H_
