// SPDX-License-Identifier: Apache-2.0
#include "core/engine.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/ablation/effects.h"
#include "core/ablation/plan.h"
#include "core/answer_dtype.h"
#include "core/base/memory.h"
#include "core/base/refusal.h"
#include "core/batch/ablate_result.h"
#include "core/batch/executor.h"
#include "core/batch/reduced_error.h"
#include "core/batch/validate.h"
#include "core/engine_limits.h"
#include "core/kernel/attend.h"
#include "core/kernel/tile_kernel.h"
#include "core/layer/attention_layer.h"
#include "core/layer/layer_bytes.h"
#include "core/layer/store.h"

namespace headwise {
namespace {

// Ablations beyond that many are a sweep, which runs at this priority or below.
constexpr int64_t kFewAblations = 4;
constexpr int32_t kSweepPriority = -1;

// The path for a layer's numbers: the engine's, or primitives where a CPU has no microkernel (that
// gives the right numbers) for one of them.
KernelPath PathFor(KernelPath path, DType dtype) {
  if (dtype == DType::kF32 || path == KernelPath::kPrimitive) return path;
  const bool bf16 = BestKernelPath(TileType::kBf16) == path;
  const bool int8 = dtype != DType::kI8 || BestKernelPath(TileType::kU8S8) == path;
  return bf16 && int8 ? path : KernelPath::kPrimitive;
}

// Bytes of the tensors that came with a request.
int64_t InputBytes(const AttentionInput& input) {
  int64_t bytes = static_cast<int64_t>(input.x.bytes());
  for (const auto* view : {&input.memory, &input.positions, &input.memory_positions}) {
    if (view->has_value()) bytes += static_cast<int64_t>((*view)->bytes());
  }
  if (input.mask.has_value()) bytes += static_cast<int64_t>(input.mask->tensor.bytes());
  return bytes;
}

absl::Status TooMany(absl::string_view field, absl::string_view what, int64_t limit,
                     absl::string_view flag, int64_t was) {
  return Refuse(Refusal::kTooLarge,
                absl::StrCat(field, ": at most ", limit, " ", what, " (", flag, "); was ", was));
}

// Asks the caller for room for the answer.
absl::Status ReserveAnswer(const RequestContext& context, int64_t bytes) {
  return context.reserve_answer ? context.reserve_answer(bytes) : absl::OkStatus();
}

class EngineImpl : public Engine {
 public:
  EngineImpl(const EngineOptions& options, CpuBudget budget, KernelPath kernel, Clock* clock)
      : limits_(options.limits),
        budget_(std::move(budget)),
        kernel_(kernel),
        clock_(clock),
        executor_({.threads = static_cast<int>(budget_.threads),
                   .cpus = options.pin_threads ? AffinityCpus() : std::vector<int>(),
                   .max_batch_requests = limits_.max_batch_requests,
                   .max_batch_tokens = limits_.max_batch_tokens,
                   .batch_delay = options.batch_delay,
                   .queue = QueueLimitsOf(limits_),
                   .clock = clock}) {}

  absl::StatusOr<LayerInfo> LoadLayer(const LoadOptions& options, const LayerSpec& spec,
                                      const std::vector<RoleTensor>& tensors) override;
  absl::StatusOr<LayerInfo> UnloadLayer(absl::string_view name) override;
  absl::StatusOr<LayerInfo> GetLayer(absl::string_view name) const override;
  std::vector<LayerInfo> ListLayers() const override;
  void Forward(ForwardRequest request, ForwardDone done) override;
  void Ablate(AblateRequest request, AblateDone done) override;
  void CancelQueued() override { executor_.DropDead(); }
  void RunExclusive(const std::function<void()>& job) override { executor_.RunExclusive(job); }
  EngineStats stats() const override;
  const CpuBudget& cpu_budget() const override { return budget_; }
  const EngineLimits& limits() const override { return limits_; }
  KernelPath kernel() const override { return kernel_; }
  std::vector<KernelPath> available_kernels() const override;

 private:
  // The part of a work item that forward and ablate share: layer, validated input, limits.
  absl::StatusOr<std::unique_ptr<WorkItem>> MakeItem(const std::string& layer,
                                                     const std::optional<int64_t>& version,
                                                     AttentionInput input, uint32_t outputs,
                                                     RequestContext context);
  absl::StatusOr<std::unique_ptr<WorkItem>> MakeAblation(AblateRequest* request);
  absl::Status CheckOutputBytes(int64_t bytes) const;
  absl::StatusOr<std::shared_ptr<const AttentionLayer>> MakeLayer(
      LayerInfo info, const LayerVectors& vectors, const std::vector<RoleTensor>& tensors);
  // As MakeLayer; RESOURCE_EXHAUSTED where the system has no memory for it.
  absl::StatusOr<std::shared_ptr<const AttentionLayer>> MakeLayerIfItFits(
      LayerInfo info, const LayerVectors& vectors, const std::vector<RoleTensor>& tensors);
  // Queues the item, or answers it here if that is refused.
  void Submit(std::unique_ptr<WorkItem> item);

  const EngineLimits limits_;
  const CpuBudget budget_;
  const KernelPath kernel_;
  Clock* const clock_;
  std::atomic<int64_t> layer_bytes_{0};  // outlives the layers of the store and of requests
  LayerStore store_;
  Executor executor_;
};

absl::StatusOr<LayerInfo> EngineImpl::LoadLayer(const LoadOptions& options, const LayerSpec& spec,
                                                const std::vector<RoleTensor>& tensors) {
  if (absl::Status named = LayerStore::CheckName(options.name); !named.ok()) return named;
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16 &&
      options.dtype != DType::kI8) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: must be F32, BF16 or INT8; was ", DTypeName(options.dtype)));
  }
  auto resolved = ResolveSpec(spec);
  if (!resolved.ok()) return resolved.status();
  if (resolved->heads > limits_.max_heads) {
    return TooMany("heads", "heads in a layer", limits_.max_heads, "--max-heads", resolved->heads);
  }
  auto vectors = UnpackVectors(*resolved, tensors);
  if (!vectors.ok()) return vectors.status();
  // A load takes little beside the layer itself.
  const int64_t weight_bytes = ParameterBytes(*resolved, *vectors, options.dtype);
  auto bytes = std::make_shared<LayerBytes>(&layer_bytes_);
  absl::Status budget = bytes->Take(weight_bytes + options.kept_bytes, limits_.layer_budget_bytes);
  if (!budget.ok()) return budget;
  auto version = store_.Reserve(options.name, options.replace);
  if (!version.ok()) return version.status();
  LayerInfo info{.name = options.name,
                 .version = *version,
                 .dtype = options.dtype,
                 .kernel = KernelPathName(PathFor(kernel_, options.dtype)),
                 .source = options.source,
                 .spec = *std::move(resolved),
                 .tensors = {},
                 .count_shape = {},
                 .weight_bytes = weight_bytes,
                 .kernel_score_bytes = budget_.threads * kScoreTileBytes,
                 .reduced_error = {}};
  info.count_shape = ShapeOf(info.spec, *vectors);
  info.count_shape.weight_element_bytes = static_cast<int64_t>(DTypeBytes(options.dtype));
  for (const RoleTensor& tensor : tensors) {
    info.tensors.push_back({tensor.role, tensor.name, tensor.view.dtype, tensor.view.shape});
  }
  auto layer = MakeLayerIfItFits(std::move(info), *vectors, tensors);
  if (!layer.ok()) {
    store_.Abandon(options.name);
    return layer.status();
  }
  LayerInfo loaded = (*layer)->info();
  // The last request that holds the layer gives its bytes back.
  const AttentionLayer* const raw = layer->get();
  store_.Publish(LayerStore::Handle(raw, [held = *std::move(layer), bytes](const auto*) mutable {
    bytes.reset();
    held.reset();
  }));
  return loaded;
}

absl::StatusOr<std::shared_ptr<const AttentionLayer>> EngineImpl::MakeLayer(
    LayerInfo info, const LayerVectors& vectors, const std::vector<RoleTensor>& tensors) {
  LayerInfo full = info;
  full.dtype = DType::kF32;
  const DType dtype = info.dtype;
  auto layer = AttentionLayer::Prepare(std::move(info), vectors, PathFor(kernel_, dtype));
  if (!layer.ok()) return layer.status();
  std::optional<ReducedErrorProbe> probe;
  if (dtype != DType::kF32) {
    auto exact = AttentionLayer::Prepare(std::move(full), vectors, kernel_);
    if (!exact.ok()) return exact.status();
    probe.emplace(*std::move(exact), &executor_);
  }
  const absl::Status packed =
      UnpackRows((*layer)->spec(), tensors,
                 [&](WeightMatrix matrix, int64_t first, int64_t count, const float* rows) {
                   (*layer)->PackRows(matrix, first, count, rows);
                   if (probe.has_value()) probe->Take(matrix, first, count, rows);
                 });
  if (!packed.ok()) return packed;
  if (!probe.has_value()) return *std::move(layer);
  auto error = probe->Compare(*layer);
  if (!error.ok()) return error.status();
  (*layer)->set_reduced_error(*std::move(error));
  return *std::move(layer);
}

absl::StatusOr<std::shared_ptr<const AttentionLayer>> EngineImpl::MakeLayerIfItFits(
    LayerInfo info, const LayerVectors& vectors, const std::vector<RoleTensor>& tensors) {
  try {
    return MakeLayer(std::move(info), vectors, tensors);
  } catch (const std::bad_alloc&) {
    return Refuse(Refusal::kLayerBytes,
                  "layer: must fit into memory, unload some or retry later; was refused by the "
                  "system");
  }
}

absl::StatusOr<LayerInfo> EngineImpl::UnloadLayer(absl::string_view name) {
  auto layer = store_.Remove(name);
  if (!layer.ok()) return layer.status();
  return (*layer)->info();
}

absl::StatusOr<LayerInfo> EngineImpl::GetLayer(absl::string_view name) const {
  auto layer = store_.Find(name);
  if (!layer.ok()) return layer.status();
  return (*layer)->info();
}

std::vector<LayerInfo> EngineImpl::ListLayers() const {
  std::vector<LayerInfo> layers;
  for (const LayerStore::Handle& layer : store_.List()) layers.push_back(layer->info());
  return layers;
}

absl::Status EngineImpl::CheckOutputBytes(int64_t bytes) const {
  if (bytes <= limits_.max_output_bytes) return absl::OkStatus();
  return Refuse(Refusal::kTooLarge,
                absl::StrCat("outputs: at most ", limits_.max_output_bytes,
                             " bytes may be returned (--max-output-bytes); was ", bytes));
}

absl::StatusOr<std::unique_ptr<WorkItem>> EngineImpl::MakeItem(
    const std::string& layer, const std::optional<int64_t>& version, AttentionInput input,
    uint32_t outputs, RequestContext context) {
  auto handle = store_.Find(layer);
  if (!handle.ok()) return handle.status();
  if (version.has_value() && *version != (*handle)->info().version) {
    return absl::FailedPreconditionError(absl::StrCat("expected_version: layer \"", layer,
                                                      "\" has version ", (*handle)->info().version,
                                                      "; was ", *version));
  }
  auto item = std::make_unique<WorkItem>();
  item->layer = *std::move(handle);
  auto valid = ValidateInput(item->layer->spec(), input, limits_.max_sequences);
  if (!valid.ok()) return valid.status();
  item->input = *std::move(valid);
  const int64_t tokens = std::max(item->input.query_rows, item->input.key_rows);
  if (tokens > limits_.max_tokens) {
    return TooMany("tokens", "query or key tokens in a request", limits_.max_tokens, "--max-tokens",
                   tokens);
  }
  item->bytes = InputBytes(input) + OutputBytes(item->layer->spec(), item->input, outputs);
  item->priority = context.priority;
  item->work = EstimateWork(item->layer->spec(), item->input);
  item->owner = std::move(input.owner);
  item->outputs = outputs;
  item->context = std::move(context);
  item->accepted = clock_->Now();
  return item;
}

void EngineImpl::Submit(std::unique_ptr<WorkItem> item) {
  if (item->context.progress) item->context.progress({"queued", 0, 1, item->bytes});
  const absl::Status queued = executor_.Enqueue(&item);
  if (!queued.ok()) item->done(queued);
}

void EngineImpl::Forward(ForwardRequest request, ForwardDone done) {
  if (request.y_dtype != DType::kF32 && request.y_dtype != DType::kBF16 &&
      request.y_dtype != DType::kF16) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("y_dtype: must be F32, BF16 or F16; was ", DTypeName(request.y_dtype))));
  }
  auto item = MakeItem(request.layer, request.expected_version, std::move(request.input),
                       request.outputs == 0 ? static_cast<uint32_t>(kOutputY) : request.outputs,
                       std::move(request.context));
  absl::Status status = item.status();
  if (status.ok()) {
    const LayerSpec& spec = (*item)->layer->spec();
    const int64_t bytes = OutputBytes(spec, (*item)->input, (*item)->outputs);
    status = CheckOutputBytes(bytes);
    if (status.ok()) status = ReserveAnswer((*item)->context, bytes);
  }
  if (!status.ok()) return done(status);
  (*item)->done = [done = std::move(done),
                   y_dtype = request.y_dtype](absl::StatusOr<WorkResult> result) {
    if (!result.ok()) return done(result.status());
    ConvertY(y_dtype, &result->outputs);
    done(ForwardResult{std::move(result->pass), std::move(result->outputs)});
  };
  Submit(*std::move(item));
}

absl::StatusOr<std::unique_ptr<WorkItem>> EngineImpl::MakeAblation(AblateRequest* request) {
  const uint32_t outputs =
      (request->return_y ? kOutputY : 0u) | (request->return_p ? kOutputP : 0u);
  auto item = MakeItem(request->layer, request->expected_version, std::move(request->input),
                       outputs, std::move(request->context));
  if (!item.ok()) return item.status();
  const LayerSpec& spec = (*item)->layer->spec();
  auto plan = PlanAblations(spec, (*item)->input.queries, *request, limits_.max_ablations);
  if (!plan.ok()) return plan.status();
  if (absl::Status donors = ValidateDonors(spec, (*item)->input, limits_.max_sequences, &*plan);
      !donors.ok()) {
    return donors;
  }
  if (absl::Status bootstrap = CheckBootstrapOptions(request->bootstrap); !bootstrap.ok()) {
    return bootstrap;
  }
  for (const auto& donor : plan->donor_inputs) (*item)->work += EstimateWork(spec, *donor);
  AblationWork work{.plan = *std::move(plan),
                    .return_y = request->return_ablation_y,
                    .return_p = request->return_p,
                    .return_gram = request->return_gram,
                    .return_means = request->return_means,
                    .return_sums = request->return_sums,
                    .bootstrap = request->bootstrap};
  const int64_t count = static_cast<int64_t>(work.plan.ablations.size());
  if (request->return_all_ablation_y) {
    work.return_y.clear();
    for (int64_t a = 0; a < count; ++a) work.return_y.push_back(a);
  }
  std::sort(work.return_y.begin(), work.return_y.end());
  work.return_y.erase(std::unique(work.return_y.begin(), work.return_y.end()), work.return_y.end());
  if (!work.return_y.empty() && (work.return_y.front() < 0 || work.return_y.back() >= count)) {
    const int64_t bad = work.return_y.front() < 0 ? work.return_y.front() : work.return_y.back();
    return absl::InvalidArgumentError(
        absl::StrCat("return_ablations: must be in [0, ", count, "); was ", bad));
  }
  const double bytes = static_cast<double>(OutputBytes(spec, (*item)->input, kOutputY | outputs)) *
                           static_cast<double>(work.return_y.size() + 1) +
                       AblationBytes(spec, (*item)->input, work.plan, request->bootstrap);
  const auto answer_bytes = static_cast<int64_t>(std::min(bytes, 4.0e18));
  absl::Status fits = CheckOutputBytes(answer_bytes);
  if (fits.ok()) fits = ReserveAnswer((*item)->context, answer_bytes);
  if (!fits.ok()) return fits;
  // Not the memory for outputs of the layer that MakeItem has counted, but nearly.
  (*item)->bytes += static_cast<int64_t>(bytes);
  // Whoever studies heads waits anyway: others may go first.
  const bool is_sweep = request->sweep != SweepKind::kNone || count > kFewAblations;
  if (is_sweep) (*item)->priority = std::min((*item)->priority, kSweepPriority);
  (*item)->ablation = std::move(work);
  return item;
}

void EngineImpl::Ablate(AblateRequest request, AblateDone done) {
  auto item = MakeAblation(&request);
  if (!item.ok()) return done(item.status());
  WorkItem* raw = item->get();
  (*item)->done = [raw, done = std::move(done)](absl::StatusOr<WorkResult> work) {
    if (!work.ok()) return done(work.status());
    done(MakeAblateResult(raw, *std::move(work)));
  };
  Submit(*std::move(item));
}

EngineStats EngineImpl::stats() const {
  const ExecutorStats s = executor_.stats();
  return {.passes = s.passes,
          .pass_requests = s.pass_requests,
          .pass_tokens = s.pass_tokens,
          .dropped_expired = s.dropped_expired,
          .dropped_cancelled = s.dropped_cancelled,
          .refused_full = s.refused_full,
          .interrupts = s.interrupts,
          .batch_requests = s.batch_requests,
          .batch_tokens = s.batch_tokens,
          .queued_tokens = s.queued_tokens,
          .queued_requests = s.queued_requests,
          .queued_bytes = s.queued_bytes,
          .layer_bytes = layer_bytes_.load(),
          .pass_bytes = Scratch::TotalBytes(),
          .backlog = s.backlog};
}

std::vector<KernelPath> EngineImpl::available_kernels() const {
  std::vector<KernelPath> paths;
  for (const KernelPath path : {KernelPath::kBrgemm, KernelPath::kPrimitive}) {
    if (KernelPathAvailable(path)) paths.push_back(path);
  }
  return paths;
}

}  // namespace

const char* KernelPathName(KernelPath path) {
  switch (path) {
    case KernelPath::kAuto:
      return "AUTO";
    case KernelPath::kBrgemm:
      return "BRGEMM_AVX512";
    case KernelPath::kPrimitive:
      return "PRIMITIVE";
  }
  return "?";
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  if (absl::Status limits = CheckLimits(options.limits); !limits.ok()) return limits;
  auto budget = ChooseCpuBudget(SystemCpuBudgetInputs(options.threads));
  if (!budget.ok()) return budget.status();
  const KernelPath kernel = options.kernel == KernelPath::kAuto ? BestKernelPath() : options.kernel;
  if (!KernelPathAvailable(kernel)) {
    return absl::UnimplementedError(absl::StrCat(
        "kernel: must be one that this machine can run; was ", KernelPathName(kernel)));
  }
  Clock* clock = options.clock == nullptr ? Clock::System() : options.clock;
  const int64_t threads = budget->threads;
  try {
    return std::make_unique<EngineImpl>(options, *std::move(budget), kernel, clock);
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("threads: must be as many as the system allows; was ", threads, " and ",
                     error.code().message()));
  }
}

std::string IsaName() { return OneDnnIsaName(); }
std::string OneDnnVersion() { return OneDnnVersionText(); }

}  // namespace headwise
