// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_ENGINE_H_
#define HEADWISE_CORE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/cpu_budget.h"
#include "core/base/size_histogram.h"
#include "core/format/counts.h"
#include "core/kernel/kernel_path.h"
#include "core/layer/layer_info.h"
#include "core/layer/spec.h"
#include "core/layer/weights.h"
#include "core/request.h"

namespace headwise {

// "BRGEMM_AVX512", "PRIMITIVE", …: the name that `show` prints.
const char* KernelPathName(KernelPath path);

struct EngineLimits {
  int64_t max_batch_requests = 0;        // requests in a pass; 0: no limit, 1: no batching
  int64_t max_batch_tokens = 16384;      // query tokens in a pass; one larger request rides alone
  int64_t queue_tokens = 1 << 20;        // query tokens waiting, over all layers
  int64_t queue_bytes = 1LL << 31;       // of what waits: tensors that came and that will go
  int64_t layer_queue_tokens = 0;        // waiting for one layer; 0: no bound of its own
  int64_t client_queue_tokens = 0;       // waiting of one client; 0: no bound of its own
  int64_t client_queue_requests = 0;     // waiting of one client; 0: no bound of its own
  int64_t layer_budget_bytes = 0;        // parameters of all layers; 0: no bound
  int64_t max_tokens = 1 << 20;          // query tokens of one request, and keys
  int64_t max_heads = 4096;              // of one layer
  int64_t max_output_bytes = 1LL << 30;  // returned tensors of one request
  int64_t max_sequences = 65536;         // sequences of one request
  int64_t max_ablations = 4096;          // ablations of one request
};

struct EngineOptions {
  std::optional<int64_t> threads;  // absent: OMP_NUM_THREADS, then quota, cpuset, affinity
  KernelPath kernel = KernelPath::kAuto;
  EngineLimits limits;
  absl::Duration batch_delay;  // how long an idle engine waits for company; 0: not at all
  bool pin_threads = false;    // each compute thread stays on a CPU of its own
  Clock* clock = nullptr;      // not owned; null: the system's
};

// Counters since start. Each only grows.
struct EngineStats {
  int64_t passes = 0;         // passes that ran kernels
  int64_t pass_requests = 0;  // requests that rode in them
  int64_t pass_tokens = 0;
  int64_t dropped_expired = 0;    // left before any kernel: deadline
  int64_t dropped_cancelled = 0;  // left before any kernel: cancelled
  int64_t refused_full = 0;       // queue full
  int64_t interrupts = 0;         // passes that ran inside a longer one
  SizeHistogram batch_requests;   // of each pass
  SizeHistogram batch_tokens;
  // Gauges: waiting now, and loaded or still in use.
  int64_t queued_tokens = 0;
  int64_t queued_requests = 0;
  int64_t queued_bytes = 0;
  int64_t layer_bytes = 0;
  int64_t pass_bytes = 0;  // buffers of passes, of the whole process
  absl::Duration backlog;  // what waits should take, at the rate of the last passes
};

struct LoadOptions {
  std::string name;  // [A-Za-z0-9._-]{1,128}, no leading dot
  bool replace = false;
  DType dtype = DType::kF32;  // of the weights in memory: F32, BF16 or I8
  LayerSource source;         // for `show`
  // What the caller keeps beside the layer for as long as it is loaded: counts as the layer's.
  int64_t kept_bytes = 0;
};

// Keeps layers in memory and runs forward and ablation requests on them; the only door of core.
// Thread-safe. Callbacks run on compute threads: they must be short and must not call back into
// the engine in a way that waits.
class Engine {
 public:
  // INVALID_ARGUMENT for options out of range; UNIMPLEMENTED if a forced kernel can't run here;
  // RESOURCE_EXHAUSTED if the system gives no thread.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);

  // Waits for the running pass; what is queued is answered UNAVAILABLE.
  virtual ~Engine() = default;

  // Packs the weights and makes the layer available. `tensors` are only read during the call. A
  // layer in BF16 or I8 is first measured against its f32 form, which needs memory for both.
  // INVALID_ARGUMENT (spec, shapes, name), UNIMPLEMENTED (a setting, by name), ALREADY_EXISTS,
  // RESOURCE_EXHAUSTED (layer_budget_bytes), what a tensor's `read` gives.
  virtual absl::StatusOr<LayerInfo> LoadLayer(const LoadOptions& options, const LayerSpec& spec,
                                              const std::vector<RoleTensor>& tensors) = 0;

  // The layer disappears from the list at once and its memory is freed after its last request.
  // NOT_FOUND.
  virtual absl::StatusOr<LayerInfo> UnloadLayer(absl::string_view name) = 0;

  virtual absl::StatusOr<LayerInfo> GetLayer(absl::string_view name) const = 0;  // NOT_FOUND
  virtual std::vector<LayerInfo> ListLayers() const = 0;                         // by name

  // Validates, queues and returns; never blocks on compute. `done` is called exactly once, on this
  // thread for a refusal, else on a compute thread. Refusals: NOT_FOUND, FAILED_PRECONDITION,
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED (queue full, outputs too large), DEADLINE_EXCEEDED,
  // CANCELLED. A queued request whose deadline passes or that is cancelled is answered without a
  // kernel as soon as the queue is looked at again (CancelQueued makes that now).
  using ForwardDone = std::function<void(absl::StatusOr<ForwardResult>)>;
  virtual void Forward(ForwardRequest request, ForwardDone done) = 0;

  using AblateDone = std::function<void(absl::StatusOr<AblateResult>)>;
  virtual void Ablate(AblateRequest request, AblateDone done) = 0;

  // Answers every queued request that is cancelled or expired. Call it after CancelToken::Cancel.
  virtual void CancelQueued() = 0;

  // Runs `job` alone on the compute slot, between passes; returns when it has run. For warm-up,
  // and for tests that need the slot held.
  virtual void RunExclusive(const std::function<void()>& job) = 0;

  virtual EngineStats stats() const = 0;
  virtual const CpuBudget& cpu_budget() const = 0;  // compute threads, and why that many
  virtual const EngineLimits& limits() const = 0;
  virtual KernelPath kernel() const = 0;  // the path chosen; never kAuto
  virtual std::vector<KernelPath> available_kernels() const = 0;
};

// "AVX512_CORE_BF16", …: what oneDNN runs on; and its version, "3.7.2".
std::string IsaName();
std::string OneDnnVersion();

}  // namespace headwise

#endif  // HEADWISE_CORE_ENGINE_H_
