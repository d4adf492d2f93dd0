// SPDX-License-Identifier: Apache-2.0
#include "server/startup_layers.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/layer/demo_layers.h"

namespace headwise {
namespace {

// "minilm" and "smollm2" are the folders that the project's test data has.
constexpr char kEncoderDemo[] = "minilm";
constexpr char kDecoderDemo[] = "smollm2";

absl::StatusOr<LayerInfo> LoadDemoLayer(const DemoLayer& demo, LayerLoader* loader) {
  UploadLoad load;
  load.options.name = demo.name;
  load.options.source = {.dir = "",
                         .layer = "",
                         .family = "spec",
                         .prefix = "",
                         .x_enters = "x is the input of the q, k and v projections",
                         .y_leaves = "y is the output of W_O with its bias, if any"};
  load.spec = demo.spec;
  for (const DemoTensor& tensor : demo.tensors) {
    load.uses.push_back({tensor.role, tensor.name});
    load.tensors.push_back({tensor.name, tensor.tensor});
  }
  return loader->LoadNow(load);
}

StartupJob DemoJob(DemoLayer demo) {
  const std::string name = demo.name;
  return {name,
          [demo = std::move(demo)](LayerLoader* loader) { return LoadDemoLayer(demo, loader); }};
}

StartupJob CheckpointJob(const StartupLayer& layer) {
  return {
      layer.name, [layer](LayerLoader* loader) -> absl::StatusOr<LayerInfo> {
        const DType dtype = layer.dtype == "bf16"   ? DType::kBF16
                            : layer.dtype == "int8" ? DType::kI8
                                                    : DType::kF32;
        return loader->LoadNow(RepositoryLoad{layer.name, layer.dir, layer.layer, false, dtype});
      }};
}

}  // namespace

std::vector<StartupJob> StartupJobs(const ServerOptions& options, const LayerLoader& loader) {
  std::vector<StartupJob> jobs;
  if (options.demo) {
    for (DemoLayer& demo : DemoLayers()) jobs.push_back(DemoJob(std::move(demo)));
    for (const auto& [dir, layer] :
         {std::pair<std::string, std::string>{kEncoderDemo, options.demo_layer},
          {kDecoderDemo, "0"}}) {
      if (loader.HasFolder(dir)) jobs.push_back(CheckpointJob({dir, dir, layer, "f32"}));
    }
  }
  for (const StartupLayer& layer : options.loads) jobs.push_back(CheckpointJob(layer));
  return jobs;
}

std::vector<std::string> StartupNames(const ServerOptions& options, const LayerLoader& loader) {
  std::vector<std::string> names;
  for (const StartupJob& job : StartupJobs(options, loader)) names.push_back(job.name);
  return names;
}

}  // namespace headwise
