// SPDX-License-Identifier: Apache-2.0
// What the learner's verbs say about real layers and about the chapter's two heads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/format/safetensors.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// All numbers of nested lists, in order.
void Flatten(const json& values, std::vector<double>* out) {
  if (values.is_number()) return out->push_back(values.get<double>());
  for (const json& value : values) Flatten(value, out);
}

void ExpectNear(const json& actual, const json& expected, double tolerance,
                const std::string& what) {
  std::vector<double> a, e;
  Flatten(actual, &a);
  Flatten(expected, &e);
  ASSERT_EQ(a.size(), e.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], e[i], tolerance) << what << " " << i;
}

// Every number of the layer's worked example, computed in float64 by other code.
void ExpectWorked(const json& trace, const std::string& folder) {
  ASSERT_TRUE(trace.contains("values")) << trace;
  std::ifstream file(TestDataPath(absl::StrCat("data/", folder, "/expected.json")));
  const json expected = json::parse(file);
  const json& values = trace["values"];
  for (const auto& [name, numbers] : expected.items()) {
    const bool pairs = name == "p" || name == "scores";
    ExpectNear(values[pairs ? name + ".0" : name], numbers, 4e-6 * 10, folder + " " + name);
  }
  EXPECT_EQ(expected.size(), 8u);
}

const json& Stage(const json& trace, const std::string& id) {
  for (const json& stage : trace["stages"]) {
    if (stage["stage"] == id) return stage;
  }
  ADD_FAILURE() << id << " in " << trace["stages"];
  return trace;
}

double LargestDifference(const json& trace, const std::string& matrix) {
  double largest = -1.0;
  for (const json& head : trace["separate_and_combined"]["heads"]) {
    if (head["matrix"] == matrix) largest = std::max(largest, head["difference"].get<double>());
  }
  return largest;
}

class Learn : public ::testing::Test {
 protected:
  // Until the layers that the server was started with are there; its calls wait for nothing.
  void SetUp() override {
    CommandResult health;
    for (int i = 0; i < 600 && health.exit_code != 0; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      health = server_.Headwise({"health"});
    }
    ASSERT_EQ(health.exit_code, 0) << health.err;
  }

  // x of a stored layer, in its sequences.
  json TraceStored(const std::string& name, const std::string& dir) const {
    const std::string inputs = TestDataPath(absl::StrCat("data/", dir, "/inputs.safetensors"));
    return server_.HeadwiseJson(
        {"trace", name, "--input", inputs + ":layer0.x", "--lengths-from", inputs + ":lengths"});
  }

  ServerProcess server_{{"--demo", "--repository", TestDataPath("data")}};
};

TEST_F(Learn, TheTwoHeadExampleIsWorkedInFull) {
  for (const auto& [name, folder] : std::vector<std::pair<std::string, std::string>>{
           {"two-head", "two_head"}, {"two-head-unequal", "two_head_unequal"}}) {
    const std::string x = TestDataPath(absl::StrCat("data/", folder, "/x.npy"));
    const json trace = server_.HeadwiseJson({"trace", name, "--input", x});
    ExpectWorked(trace, folder);
    for (const char* matrix : {"q", "k", "v"}) {
      EXPECT_GE(LargestDifference(trace, matrix), 0.0);
      EXPECT_LE(LargestDifference(trace, matrix), 1e-6);
    }
    EXPECT_EQ(Stage(trace, "scores")["shapes"], json::array({json::array({1, 2, 3, 3})}));
    EXPECT_EQ(Stage(trace, "scores")["bytes"], "72");
  }
  const CommandResult text =
      server_.Headwise({"trace", "two-head", "--input", TestDataPath("data/two_head/x.npy")});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  // Head 1: q k^T, the scores that the mask leaves, and the weights, row by row.
  EXPECT_THAT(text.out, HasSubstr("0.1956  0.8044"));
  EXPECT_THAT(text.out, HasSubstr("0.0114  0.1933  0.7952"));
  EXPECT_THAT(text.out, HasSubstr("q[0, 1, 0]: column 1*2 + 0 = 2, offset 0*4 + 2 = 2, value 2"));
}

// The same layers typed as JSON, on a server that keeps nothing of them.
TEST_F(Learn, ATypedLayerIsTracedAndGone) {
  const json before = server_.HeadwiseJson({"list"});
  for (const std::string folder : {"two_head", "two_head_unequal"}) {
    const std::string file = TestDataPath(absl::StrCat("data/", folder, "/layer.json"));
    ExpectWorked(server_.HeadwiseJson({"trace", "--layer-json", file}), folder);
  }
  EXPECT_EQ(server_.HeadwiseJson({"list"}), before);
  const TempDir dir;
  const std::string wrong =
      dir.Write("wrong.json", R"({"spec": {"heads": 2, "orientation": "OUT_IN"},
                        "weights": {"q": [[1]], "k": [[1]], "v": [[1]], "o": [[1]]}, "x": [[1]]})");
  const CommandResult refused = server_.Headwise({"trace", "--layer-json", wrong});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("must divide evenly"));
  EXPECT_EQ(server_.HeadwiseJson({"list"}), before);
}

TEST_F(Learn, TracesTrainedLayers) {
  const json minilm = TraceStored("minilm", "minilm");
  EXPECT_EQ(Stage(minilm, "x")["axes"], (json{"batch", "position", "feature"}));
  EXPECT_EQ(Stage(minilm, "p")["shapes"].size(), 24u);
  EXPECT_EQ(Stage(minilm, "q_heads")["shapes"][0][2], 32);
  EXPECT_EQ(Stage(minilm, "y")["bytes"], absl::StrCat(538 * 384 * 4));
  EXPECT_FALSE(minilm.contains("values"));
  // RoPE, grouped heads: q and k are compared where RoPE turns nothing.
  const json smollm2 = TraceStored("smollm2", "smollm2");
  for (const json& trace : {minilm, smollm2}) {
    for (const char* matrix : {"q", "k", "v"}) {
      EXPECT_GT(LargestDifference(trace, matrix), 0.0) << matrix;
      EXPECT_LT(LargestDifference(trace, matrix), 2e-4) << matrix;
    }
    EXPECT_EQ(trace["separate_and_combined"]["left_out"], "");
  }
  EXPECT_EQ(Stage(smollm2, "k_heads")["shapes"][0][1], 3);
}

// The example of the index arithmetic, found again in q as `forward` gives it.
TEST_F(Learn, IndexArithmeticHoldsOnTheAnswer) {
  const json trace =
      server_.HeadwiseJson({"trace", "two-head", "--input", TestDataPath("data/two_head/x.npy")});
  const json& index = trace["index_arithmetic"];
  const json& q = trace["values"]["q"];
  const size_t tokens = index["shape"][0], heads = index["shape"][1], width = index["shape"][2];
  const size_t t = index["index"][0], r = index["index"][1], f = index["index"][2];
  EXPECT_EQ(q[index["offset"].get<size_t>()], index["value"]);
  EXPECT_EQ(index["offset"], (t * heads + r) * width + f);
  std::vector<double> transposed;
  for (size_t head = 0; head < heads; ++head) {
    for (size_t token = 0; token < tokens; ++token) {
      for (size_t feature = 0; feature < width; ++feature) {
        transposed.push_back(q[(token * heads + head) * width + feature].get<double>());
      }
    }
  }
  const size_t place = index["transposed_offset"];
  EXPECT_EQ(transposed[place], index["value"]);
  EXPECT_EQ(q[place], index["without_transpose"]["value"]);
}

// A fused projection is split for the comparison, and the split copy is gone afterwards.
TEST_F(Learn, FusedProjectionsAreSplitForTheComparison) {
  const json load = server_.HeadwiseJson(
      {"load", "fused", "--upload", TestDataPath("golden/gpt2"), "--layer", "0"});
  const uint32_t width = load["layer"]["d_model"];
  const json before = server_.HeadwiseJson({"list"});
  const CommandResult show = server_.Headwise({"show", "fused", "--json"});
  EXPECT_EQ(show.json()["spec"]["fused_layout"], "BLOCKS");
  const TempDir dir;
  const std::string input = dir.Path("x.safetensors");
  std::vector<float> values(2 * width);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3.0f;
  ASSERT_TRUE(WriteSafetensors(input, {{"x", FloatTensor({2, width}, values).view()}}).ok());
  const json trace = server_.HeadwiseJson({"trace", "fused", "--input", input});
  for (const char* matrix : {"q", "k", "v"}) {
    EXPECT_GE(LargestDifference(trace, matrix), 0.0) << trace["separate_and_combined"];
    EXPECT_LT(LargestDifference(trace, matrix), 1e-4) << matrix;
  }
  EXPECT_EQ(server_.HeadwiseJson({"list"}), before);
}

// Layers of every kind of setting: what can be said of them is, what can't is named.
TEST_F(Learn, EveryKindOfLayerCanBeTracedAndAskedAbout) {
  const TempDir dir;
  for (const auto& [folder, layer] :
       std::vector<std::pair<std::string, std::string>>{{"gpt_oss_sinks", "0"},
                                                        {"mpt_alibi_clip", "0"},
                                                        {"qwen3_qknorm", "0"},
                                                        {"gemma2_softcap_alternating", "0"},
                                                        {"t5_relative_bias", "encoder.0"},
                                                        {"bart_encoder_decoder_cross", "cross.0"},
                                                        {"falcon_7b_mqa", "0"}}) {
    const json load = server_.HeadwiseJson(
        {"load", folder, "--upload", TestDataPath("golden/" + folder), "--layer", layer});
    const uint32_t width = load["layer"]["d_model"];
    std::vector<float> values(5 * width);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) / 8.0f - 0.4f;
    const std::string input = dir.Path(folder + ".safetensors");
    const TensorView x{DType::kF32, {2, width}, values.data()};
    const TensorView memory{DType::kF32, {5, width}, values.data()};
    ASSERT_TRUE(WriteSafetensors(input, {{"x", x}, {"memory", memory}}).ok());
    const bool cross = layer == "cross.0";
    std::vector<std::string> words = {"trace", folder, "--input", input + ":x", "--worked"};
    if (cross) words.insert(words.end(), {"--memory", input + ":memory"});
    const json trace = server_.HeadwiseJson(words);
    const int64_t heads = load["layer"]["heads"];
    EXPECT_EQ(Stage(trace, "scores")["shapes"],
              json::array({json::array({1, heads, 2, cross ? 5 : 2})}))
        << folder;
    // Clipped, normed or stretched projections can't be compared, and the answer says which.
    const std::string left_out = trace["separate_and_combined"]["left_out"];
    const std::set<std::string> hindered = {"mpt_alibi_clip", "qwen3_qknorm", "gpt_oss_sinks"};
    EXPECT_NE(left_out.empty(), hindered.contains(folder)) << left_out;
    for (const char* matrix : {"q", "k", "v"}) EXPECT_LT(LargestDifference(trace, matrix), 1e-4);
    EXPECT_EQ(server_.Headwise(words).exit_code, 0) << folder;
    for (const char* kind :
         {"shape", "calculation", "cost", "interpretation", "permutation", "debugging"}) {
      const CommandResult asked =
          server_.Headwise({"exercise", folder, "--kind", kind, "--answers"});
      EXPECT_EQ(asked.exit_code, 0) << folder << " " << kind << " " << asked.err;
    }
  }
}

TEST_F(Learn, CountsOfAServedLayerAreThoseOfTheCounter) {
  const json count = server_.HeadwiseJson(
      {"count", "smollm2", "--batch", "2", "--queries", "10", "--head-counts", "1,9"});
  std::map<std::string, std::string> values;
  for (const json& entry : count["counts"])
    values[entry["id"].get<std::string>()] = entry["value"].get<std::string>();
  EXPECT_EQ(values["parameters"], absl::StrCat(2 * 576 * 576 + 2 * 192 * 576));
  EXPECT_EQ(values["parameters_with_bias"], values["parameters"]);
  EXPECT_EQ(values["parameters_k"], absl::StrCat(192 * 576));
  EXPECT_EQ(values["macs_scores_causal"], absl::StrCat(2 * 55 * 576));
  EXPECT_EQ(values["kv_bytes_per_token"], absl::StrCat(2 * 192 * 4));
  EXPECT_GT(std::stoll(values["kernel_score_bytes"]), 0);
  EXPECT_EQ(count["head_counts"].size(), 2u);
}

// Every kind on every kind of layer: its own solution is right, another answer is explained, and
// the same seed asks the same.
TEST_F(Learn, ExercisesAreJudgedByTheLayersOwnComputation) {
  const json before = server_.HeadwiseJson({"list"});
  const std::vector<std::string> layers = {"", "two-head", "two-head-unequal", "minilm", "smollm2"};
  std::map<std::string, std::set<std::string>> questions;
  for (const std::string kind :
       {"shape", "calculation", "cost", "interpretation", "permutation", "debugging"}) {
    for (size_t i = 0; i < 10; ++i) {
      const std::string& layer = layers[i % layers.size()];
      std::vector<std::string> words = {"exercise", "--kind", kind, "--seed", absl::StrCat(i)};
      if (!layer.empty()) words.insert(words.begin() + 1, layer);
      const std::string what = absl::StrCat(kind, " ", i, " ", layer);
      std::vector<std::string> solve = words;
      solve.push_back("--answers");
      const json solved = server_.HeadwiseJson(solve);
      ASSERT_TRUE(solved.contains("expected")) << what;
      questions[kind].insert(solved["question"].get<std::string>());
      std::vector<std::string> answer = words;
      answer.insert(answer.end(), {"--answer", solved["expected"].get<std::string>()});
      const json right = server_.HeadwiseJson(answer);
      EXPECT_EQ(right["right"], true) << what << right;
      EXPECT_EQ(right["question"], solved["question"]) << what;
      const std::string expected = solved["expected"];
      const bool letters = expected.find_first_of("abcde") == 0;
      // Every number one too large; or the first letter that isn't right alone.
      std::string other;
      for (const char c : letters ? std::string("abcde") : std::string()) {
        if (other.empty() && expected.find(c) == expected.npos) other = c;
      }
      for (const auto& part : absl::StrSplit(letters ? "" : expected, ',', absl::SkipEmpty())) {
        absl::StrAppend(&other, other.empty() ? "" : ",", std::stod(std::string(part)) + 1.0);
      }
      answer.back() = other;
      answer.push_back("--json");
      const CommandResult wrong = server_.Headwise(answer);
      EXPECT_EQ(wrong.exit_code, 3) << what << " " << other << wrong.err;
      EXPECT_EQ(wrong.json()["right"], false) << what;
      EXPECT_GT(wrong.json()["explanation"].get<std::string>().size(), 20u) << what;
    }
    EXPECT_GE(questions[kind].size(), 8u) << kind;
  }
  EXPECT_EQ(server_.HeadwiseJson({"list"}), before);
}

TEST_F(Learn, WorkedInFullHasALimit) {
  const std::string inputs = TestDataPath("data/minilm/inputs.safetensors");
  const CommandResult refused =
      server_.Headwise({"trace", "minilm", "--worked", "--input", inputs + ":layer0.x"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("RESOURCE_EXHAUSTED: worked: at most 20,000 numbers"));
}

}  // namespace
}  // namespace headwise
