// SPDX-License-Identifier: Apache-2.0
#include "tests/support/plan_helper.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise {

using ::testing::HasSubstr;

void AddTensors(StoredTensors* stored, const std::string& block, const NamedShapes& named) {
  for (const auto& [name, shape] : named) stored->push_back({block + name, "F32", shape});
}

StoredTensors LlamaBlocks(int64_t kv_heads, int64_t dk, const NamedShapes& more,
                          const std::string& prefix) {
  StoredTensors stored;
  for (int64_t layer = 0; layer < 8; ++layer) {
    const std::string block = absl::StrCat(prefix, "layers.", layer, ".self_attn.");
    AddTensors(&stored, block,
               {{"q_proj.weight", {4 * dk, 16}},
                {"k_proj.weight", {kv_heads * dk, 16}},
                {"v_proj.weight", {kv_heads * dk, 16}},
                {"o_proj.weight", {16, 4 * dk}}});
    AddTensors(&stored, block, more);
  }
  return stored;
}

std::string LlamaBlocksConfig(absl::string_view model_type, absl::string_view more) {
  return absl::StrCat(R"({"model_type":")", model_type, R"(","hidden_size":16,)",
                      R"("num_attention_heads":4,"num_key_value_heads":4,"num_hidden_layers":8)",
                      more, "}");
}

LayerPlan PlanOrFail(const std::string& config, const std::string& layer,
                     const StoredTensors& stored) {
  absl::StatusOr<LayerPlan> plan = PlanLayer(config, layer, stored);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : LayerPlan();
}

void ExpectPlanRefused(const std::string& config, const std::string& layer,
                       const StoredTensors& stored, absl::StatusCode code,
                       const std::string& text) {
  const absl::Status status = PlanLayer(config, layer, stored).status();
  EXPECT_EQ(status.code(), code) << config << " " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

std::string RolesOf(const LayerPlan& plan) {
  return absl::StrJoin(plan.tensors, " ", [](std::string* out, const TensorUse& use) {
    absl::StrAppend(out, TensorRoleName(use.role));
  });
}

}  // namespace headwise
