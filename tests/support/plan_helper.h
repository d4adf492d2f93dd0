// SPDX-License-Identifier: Apache-2.0
// Made-up checkpoints for tests of the loader: names and shapes without bytes.
#ifndef HEADWISE_TESTS_SUPPORT_PLAN_HELPER_H_
#define HEADWISE_TESTS_SUPPORT_PLAN_HELPER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/checkpoint/checkpoint.h"

namespace headwise {

using StoredTensors = std::vector<StoredTensorInfo>;
using NamedShapes = std::vector<std::pair<std::string, Shape>>;

// Adds F32 tensors named `block` + name.
void AddTensors(StoredTensors* stored, const std::string& block, const NamedShapes& named);

// Eight blocks of q, k, v, o as LLaMA names them, D 16 and H 4, with `more` in each.
StoredTensors LlamaBlocks(int64_t kv_heads = 4, int64_t dk = 4, const NamedShapes& more = {},
                          const std::string& prefix = "model.");

// Its config.json, with `more` before the closing brace.
std::string LlamaBlocksConfig(absl::string_view model_type, absl::string_view more = "");

// A refusal fails the test and gives an empty plan.
LayerPlan PlanOrFail(const std::string& config, const std::string& layer,
                     const StoredTensors& stored);

void ExpectPlanRefused(const std::string& config, const std::string& layer,
                       const StoredTensors& stored, absl::StatusCode code, const std::string& text);

// "Q_WEIGHT K_WEIGHT …", in the plan's order.
std::string RolesOf(const LayerPlan& plan);

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_PLAN_HELPER_H_
