// SPDX-License-Identifier: Apache-2.0
#include "core/audit/engine_target.h"

#include <future>

#include "absl/status/status.h"

namespace headwise {
namespace {

std::vector<float> Floats(const NamedOutput& output) {
  return {output.floats(), output.floats() + output.data.size() / sizeof(float)};
}

// Waits for an answer that comes on a compute thread.
template <typename Result, typename Call>
absl::StatusOr<Result> Await(const Call& call) {
  std::promise<absl::StatusOr<Result>> promise;
  std::future<absl::StatusOr<Result>> answer = promise.get_future();
  call([&promise](absl::StatusOr<Result> result) { promise.set_value(std::move(result)); });
  return answer.get();
}

absl::StatusOr<AuditTarget::Outputs> ForwardOn(Engine* engine, ForwardRequest request) {
  auto result = Await<ForwardResult>(
      [&](Engine::ForwardDone done) { engine->Forward(std::move(request), std::move(done)); });
  if (!result.ok()) return result.status();
  AuditTarget::Outputs outputs;
  for (NamedOutput& output : result->outputs) outputs[output.name] = std::move(output);
  return outputs;
}

}  // namespace

absl::StatusOr<AuditTarget::Outputs> EngineTarget::Forward(const AttentionInput& input,
                                                           uint32_t outputs) {
  return ForwardOn(&engine_, {.layer = layer_,
                              .expected_version = version_,
                              .input = input,
                              .outputs = outputs,
                              .context = context_});
}

absl::StatusOr<std::vector<float>> EngineTarget::AblatedY(const AttentionInput& input,
                                                          const std::vector<int64_t>& heads) {
  AblateRequest request;
  request.layer = layer_;
  request.expected_version = version_;
  request.input = input;
  request.ablations = {Ablation{{Intervention{.heads = heads}}}};
  request.return_ablation_y = {0};
  request.context = context_;
  auto result = Await<AblateResult>(
      [&](Engine::AblateDone done) { engine_.Ablate(std::move(request), std::move(done)); });
  if (!result.ok()) return result.status();
  return Floats(result->outputs.front());
}

absl::StatusOr<std::vector<float>> EngineTarget::OtherY(const LayerParts& layer, bool fused,
                                                        DType dtype, KernelPath kernel,
                                                        const AttentionInput& input) {
  const KernelPath path = kernel == KernelPath::kAuto ? engine_.kernel() : kernel;
  std::unique_ptr<Engine>& own = own_[path];
  if (own == nullptr) {
    EngineLimits limits = engine_.limits();
    limits.layer_budget_bytes = 0;  // it holds one layer at a time, and not for long
    auto made = Engine::Create({.threads = 1, .kernel = path, .limits = limits});
    if (!made.ok()) return made.status();
    own = *std::move(made);
  }
  const auto tensors = ToTensors(layer, fused);
  if (!tensors.ok()) return tensors.status();
  std::vector<RoleTensor> roles;
  for (const DerivedTensor& tensor : tensors->tensors) {
    roles.push_back({tensor.role, tensor.name, tensor.tensor.view()});
  }
  LoadOptions options;
  options.name = "other";
  options.replace = true;
  options.dtype = dtype;
  const auto loaded = own->LoadLayer(options, tensors->spec, roles);
  if (!loaded.ok()) return loaded.status();
  const auto outputs =
      ForwardOn(own.get(), {.layer = "other", .input = input, .context = context_});
  const auto unloaded = own->UnloadLayer("other");
  if (!outputs.ok()) return outputs.status();
  return Floats(outputs->at("y"));
}

}  // namespace headwise
