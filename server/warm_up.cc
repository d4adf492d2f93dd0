// SPDX-License-Identifier: Apache-2.0
#include "server/warm_up.h"

#include <future>
#include <memory>
#include <utility>
#include <vector>

namespace headwise {
namespace {

constexpr int64_t kTokens = 64;  // one tile

}  // namespace

absl::Status WarmUp(Engine* engine, const LayerInfo& layer) {
  const LayerSpec& spec = layer.spec;
  const int64_t width = std::max(spec.d_model, spec.d_memory);
  const auto zeros = std::make_shared<std::vector<float>>(static_cast<size_t>(kTokens * width));
  ForwardRequest request;
  request.layer = layer.name;
  request.input.x = {DType::kF32, {kTokens, spec.d_model}, zeros->data()};
  if (spec.d_memory != spec.d_model) {
    request.input.memory = TensorView{DType::kF32, {kTokens, spec.d_memory}, zeros->data()};
  }
  request.input.owner = zeros;
  std::promise<absl::Status> ended;
  engine->Forward(std::move(request), [&](const absl::StatusOr<ForwardResult>& result) {
    ended.set_value(result.status());
  });
  return ended.get_future().get();
}

}  // namespace headwise
