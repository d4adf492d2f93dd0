// SPDX-License-Identifier: Apache-2.0
#include "tests/server/fake_engine.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

absl::Status NoLayer(absl::string_view name) {
  return absl::NotFoundError(absl::StrCat("layer: no such layer is loaded; was ", name));
}

NamedOutput Copy(const std::string& name, const TensorView& view) {
  NamedOutput output;
  output.name = name;
  output.dtype = view.dtype;
  output.shape = view.shape;
  output.axes = {"token", "feature"};
  output.data.assign(static_cast<const char*>(view.data), view.bytes());
  return output;
}

PassInfo MakePass(const std::string& layer, const AttentionInput& input) {
  PassInfo pass;
  pass.layer = layer;
  pass.layer_version = 1;
  pass.lengths = input.lengths.empty() ? std::vector<int64_t>{input.x.dim(0)} : input.lengths;
  pass.batch_requests = 1;
  pass.queue_us = 7;
  pass.compute_us = 11;
  return pass;
}

NamedOutput Floats(std::string name, Shape shape, const std::vector<float>& values) {
  NamedOutput output;
  output.name = std::move(name);
  output.shape = std::move(shape);
  output.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return output;
}

std::vector<NamedOutput> Outputs(const AttentionInput& input, const std::vector<int64_t>& lengths,
                                 uint32_t outputs, int64_t heads) {
  std::vector<NamedOutput> result;
  if ((outputs & kOutputY) != 0) result.push_back(Copy("y", input.x));
  for (size_t s = 0; s < lengths.size() && (outputs & kOutputP) != 0; ++s) {
    const int64_t n = lengths[s];
    const std::vector<float> p(static_cast<size_t>(heads * n * n), 1.0f / static_cast<float>(n));
    result.push_back(Floats(absl::StrCat("p.", s), {heads, n, n}, p));
  }
  if ((outputs & kOutputContributions) != 0) {
    const auto* x = static_cast<const float*>(input.x.data);
    const int64_t rows = input.x.dim(0), width = input.x.dim(1);
    std::vector<float> c;
    for (int64_t i = 0; i < rows * heads; ++i) {
      c.insert(c.end(), x + i / heads * width, x + (i / heads + 1) * width);
    }
    result.push_back(Floats("contributions", {rows, heads, width}, c));
  }
  return result;
}

constexpr int64_t kQueuedBytes = 4096;

}  // namespace

absl::StatusOr<LayerInfo> FakeEngine::LoadLayer(const LoadOptions& options, const LayerSpec& spec,
                                                const std::vector<RoleTensor>& tensors) {
  absl::StatusOr<LayerSpec> resolved = ResolveSpec(spec);
  if (!resolved.ok()) return resolved.status();
  if (auto matrices = UnpackWeights(*resolved, tensors); !matrices.ok()) return matrices.status();
  MutexLock lock(&mu_);
  if (!options.replace && layers_.contains(options.name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("name: is taken by a loaded layer; was ", options.name));
  }
  LayerInfo& info = layers_[options.name];
  info.name = options.name;
  info.version = ++versions_[options.name];
  info.source = options.source;
  info.spec = *std::move(resolved);
  info.kernel = KernelPathName(kernel());
  info.tensors.clear();
  for (const RoleTensor& tensor : tensors) {
    info.tensors.push_back({tensor.role, tensor.name, tensor.view.dtype, tensor.view.shape});
  }
  info.weight_bytes = 1000;
  return info;
}

void FakeEngine::AddLayer(const std::string& name, const LayerSpec& spec) {
  MutexLock lock(&mu_);
  LayerInfo& info = layers_[name];
  info.name = name;
  info.spec = spec;
  info.version = ++versions_[name];
  info.weight_bytes = 1000;
}

absl::StatusOr<LayerInfo> FakeEngine::UnloadLayer(absl::string_view name) {
  MutexLock lock(&mu_);
  const auto found = layers_.find(name);
  if (found == layers_.end()) return NoLayer(name);
  LayerInfo info = std::move(found->second);
  layers_.erase(found);
  return info;
}

absl::StatusOr<LayerInfo> FakeEngine::GetLayer(absl::string_view name) const {
  MutexLock lock(&mu_);
  const auto found = layers_.find(name);
  if (found == layers_.end()) return NoLayer(name);
  return found->second;
}

std::vector<LayerInfo> FakeEngine::ListLayers() const {
  MutexLock lock(&mu_);
  std::vector<LayerInfo> layers;
  for (const auto& [name, info] : layers_) layers.push_back(info);
  return layers;
}

void FakeEngine::Submit(const std::string& layer, const RequestContext& context,
                        int64_t answer_bytes, std::function<void(absl::Status)> answer) {
  absl::Status status = GetLayer(layer).status();
  if (status.ok() && context.reserve_answer) status = context.reserve_answer(answer_bytes);
  if (status.ok()) {
    if (context.progress) context.progress({"queued", 0, 1, kQueuedBytes});
    MutexLock lock(&mu_);
    last_context_ = context;
    if (held_) {
      waiting_.push_back({context, std::move(answer)});
      changed_.SignalAll();
      return;
    }
    ++stats_.passes;
  }
  answer(status);
}

void FakeEngine::Forward(ForwardRequest request, ForwardDone done) {
  const std::string layer = request.layer;
  const RequestContext context = request.context;
  auto held = std::make_shared<ForwardRequest>(std::move(request));
  const absl::StatusOr<LayerInfo> info = GetLayer(layer);
  const int64_t heads = info.ok() ? info->spec.heads : 0;
  const auto bytes = static_cast<int64_t>(held->input.x.bytes());
  Submit(layer, context, bytes, [held, heads, done = std::move(done)](absl::Status status) {
    if (!status.ok()) return done(status);
    ForwardResult result;
    if (held->context.progress) held->context.progress({"attend", 1, 1});
    result.pass = MakePass(held->layer, held->input);
    result.outputs = Outputs(held->input, result.pass.lengths, held->outputs, heads);
    done(std::move(result));
  });
}

void FakeEngine::Ablate(AblateRequest request, AblateDone done) {
  const std::string layer = request.layer;
  const RequestContext context = request.context;
  auto held = std::make_shared<AblateRequest>(std::move(request));
  const int64_t bytes = held->return_y ? static_cast<int64_t>(held->input.x.bytes()) : 0;
  Submit(layer, context, bytes, [held, done = std::move(done)](absl::Status status) {
    if (!status.ok()) return done(status);
    AblateResult result;
    if (held->context.progress) held->context.progress({"attend", 1, 1});
    result.pass = MakePass(held->layer, held->input);
    result.y_l2 = 2.0;
    for (size_t i = 0; i < held->ablations.size(); ++i) {
      AblationEffect effect;
      effect.index = static_cast<int64_t>(i);
      effect.ablation = held->ablations[i];
      effect.pooled.l2 = 1.0;
      result.ablations.push_back(std::move(effect));
    }
    if (held->return_y) result.outputs.push_back(Copy("y", held->input.x));
    done(std::move(result));
  });
}

void FakeEngine::CancelQueued() {
  std::vector<std::pair<Waiting, absl::Status>> dead;
  {
    MutexLock lock(&mu_);
    std::vector<Waiting> alive;
    for (Waiting& waiting : waiting_) {
      if (waiting.context.cancel != nullptr && waiting.context.cancel->cancelled()) {
        ++stats_.dropped_cancelled;
        dead.emplace_back(std::move(waiting), absl::CancelledError("request: was cancelled"));
      } else {
        alive.push_back(std::move(waiting));
      }
    }
    waiting_ = std::move(alive);
  }
  for (auto& [waiting, status] : dead) waiting.answer(status);
}

EngineStats FakeEngine::stats() const {
  MutexLock lock(&mu_);
  return stats_;
}

void FakeEngine::Hold() {
  MutexLock lock(&mu_);
  held_ = true;
}

void FakeEngine::Release() {
  std::vector<Waiting> waiting;
  {
    MutexLock lock(&mu_);
    held_ = false;
    waiting.swap(waiting_);
  }
  for (Waiting& each : waiting) each.answer(absl::OkStatus());
}

size_t FakeEngine::waiting() const {
  MutexLock lock(&mu_);
  return waiting_.size();
}

RequestContext FakeEngine::last_context() const {
  MutexLock lock(&mu_);
  return last_context_;
}

void FakeEngine::AwaitWaiting(size_t count) {
  MutexLock lock(&mu_);
  while (waiting_.size() < count) changed_.Wait(&mu_);
}

}  // namespace headwise
