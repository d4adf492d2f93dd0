// SPDX-License-Identifier: Apache-2.0
// Thousands of damaged config.json files of every family: each is planned or refused, in one line
// and with one of the codes that loading may give.
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using nlohmann::json;

class ConfigMutator {
 public:
  explicit ConfigMutator(uint32_t seed) : random_(seed) {}

  // Values of other types and sizes, keys gone, and bytes of the text.
  std::string Mutate(const json& sound) {
    json config = sound;
    for (uint32_t edits = 1 + Below(3); edits > 0; --edits) Edit(&config);
    std::string text = config.dump();
    if (Below(8) == 0) text[Below(text.size())] = static_cast<char>(Below(256));
    if (Below(32) == 0) text.resize(Below(text.size()));
    return text;
  }

 private:
  uint32_t Below(size_t limit) { return static_cast<uint32_t>(random_() % limit); }

  json Value() {
    static const auto* const values = new json(json::parse(R"([
      null, true, false, 0, 1, 2, 3, -1, 4096, 4097, 1000000000000, 9223372036854775807,
      18446744073709551615, 0.0, 0.5, 1.0, -1.5, 1e-300, 1e300, "", "full_attention",
      "sliding_attention", "yarn", "longrope", "llama3", "dynamic", "su", "local", [], [1], [0, 1],
      ["full_attention"], {}, {"type": "yarn", "factor": 4}, {"rope_type": "dynamic", "factor": 2},
      {"full_attention": {"rope_theta": 5}}, {"type": "longrope", "short_factor": [1, 1, 1],
      "long_factor": [1, 2, 3]}, {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 1}])"));
    return (*values)[Below(values->size())];
  }

  void Edit(json* object) {
    static constexpr const char* kKeys[] = {
        "rope_scaling", "rope_parameters", "layer_types",           "num_key_value_heads",
        "head_dim",     "sliding_window",  "attn_config",           "attention_types",
        "is_decoder",   "alibi",           "partial_rotary_factor", "max_position_embeddings",
        "qk_layernorm", "attention_bias"};
    if (object->empty() || Below(6) == 0) {
      (*object)[kKeys[Below(std::size(kKeys))]] = Value();
      return;
    }
    auto entry = object->begin();
    std::advance(entry, Below(object->size()));
    if (entry->is_object() && Below(4) != 0) return Edit(&*entry);
    if (Below(4) == 0) {
      object->erase(entry);
    } else {
      *entry = Value();
    }
  }

  std::mt19937 random_;
};

void ExpectPlannedOrRefused(const std::string& config, const std::string& layer,
                            const std::vector<StoredTensorInfo>& stored, int64_t* planned) {
  const absl::StatusOr<LayerPlan> plan = PlanLayer(config, layer, stored);
  if (plan.ok()) {
    ++*planned;
    ASSERT_GT(plan->spec.q_width(), 0);
    return;
  }
  const absl::StatusCode code = plan.status().code();
  ASSERT_TRUE(code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kUnimplemented ||
              code == absl::StatusCode::kNotFound || code == absl::StatusCode::kInvalidArgument)
      << plan.status() << " " << config;
  ASSERT_EQ(plan.status().message().find('\n'), absl::string_view::npos);
  ASSERT_LT(plan.status().message().size(), 4096u) << config;
}

TEST(ConfigFuzz, DamagedSettings) {
  ConfigMutator mutator(20261130);
  int64_t planned = 0;
  std::set<std::string> seen;
  for (const GoldenLayer& layer : GoldenLayers()) {
    if (!seen.insert(layer.folder + layer.config_file + layer.id).second) continue;
    const auto checkpoint = Checkpoint::Open(TestDataPath("golden"), layer.folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const json sound =
        json::parse(ReadBytes(TestDataPath("golden/" + layer.folder + "/" + layer.config_file)));
    for (int round = 0; round < 150; ++round) {
      ExpectPlannedOrRefused(mutator.Mutate(sound), layer.id, (*checkpoint)->tensors(), &planned);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(planned, 1000);
}

}  // namespace
}  // namespace headwise
