// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden_layer.h"

#include <deque>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

std::unique_ptr<Checkpoint> OpenGolden(const GoldenLayer& layer) {
  auto checkpoint = Checkpoint::Open(TestDataPath("golden"), layer.folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

}  // namespace

LayerPlan PlanGolden(const GoldenLayer& layer) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenGolden(layer);
  if (checkpoint == nullptr) return {};
  const std::string config =
      ReadBytes(TestDataPath("golden/" + layer.folder + "/" + layer.config_file));
  absl::StatusOr<LayerPlan> plan = PlanLayer(config, layer.id, checkpoint->tensors());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : LayerPlan();
}

TestLayer LoadGolden(const GoldenLayer& layer) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenGolden(layer);
  LayerPlan plan = PlanGolden(layer);
  if (checkpoint == nullptr || plan.tensors.empty()) return {};
  std::deque<OwnedTensor> stored;
  std::vector<RoleTensor> tensors;
  for (const TensorUse& use : plan.tensors) {
    absl::StatusOr<OwnedTensor> tensor = checkpoint->Read(use.name);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    if (!tensor.ok()) return {};
    stored.push_back(*std::move(tensor));
    tensors.push_back({use.role, use.name, stored.back().view(), use.head});
  }
  absl::StatusOr<LayerMatrices> matrices = UnpackWeights(plan.spec, tensors);
  EXPECT_TRUE(matrices.ok()) << matrices.status();
  if (!matrices.ok()) return {};
  plan.spec.orientation = Orientation::kOutIn;
  plan.spec.fused_layout = FusedLayout::kSeparate;
  return {plan.spec, *std::move(matrices)};
}

TestInput GoldenInput(const GoldenLayer& layer, const GoldenTensors& tensors) {
  const auto width = layer.described.at("spec").at("D").get<int64_t>();
  TestInput input(width, tensors.x, tensors.lengths);
  if (!tensors.memory.empty()) {
    const auto memory_width = layer.described.at("spec").at("D_memory").get<int64_t>();
    input.Memory(memory_width, tensors.memory, tensors.memory_lengths);
  }
  if (!tensors.positions.empty()) input.Positions(tensors.positions);
  return input;
}

}  // namespace headwise
