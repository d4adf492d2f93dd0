// SPDX-License-Identifier: Apache-2.0
// Audits as their user runs them: of served layers, and of numbers from a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/stored_layer.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Audit : public ::testing::Test {
 protected:
  Audit() : server_({"--demo"}) {}

  static std::vector<std::string> Input() {
    return {"--input", TestDataPath("data/two_head/x.npy")};
  }
  CommandResult Run(std::vector<std::string> words, bool with_input = true) const {
    if (with_input) {
      for (const std::string& word : Input()) words.push_back(word);
    }
    return server_.Headwise(std::move(words));
  }
  // y of the layer with something done to it.
  std::string WriteY(const std::vector<float>& y) const {
    const std::string path = dir_.Path("theirs.safetensors");
    const OwnedTensor tensor = FloatTensor({3, 4}, y);
    EXPECT_TRUE(WriteSafetensors(path, {{"y", tensor.view()}}).ok());
    return path;
  }
  std::vector<float> Y() const {
    const std::string path = dir_.Path("y.safetensors");
    EXPECT_EQ(Run({"forward", "two-head", "--output", path}).exit_code, 0);
    return ReadFloats(**SafetensorsFile::Open(path), "y");
  }

  const ServerProcess server_;
  const TempDir dir_;
};

TEST_F(Audit, ServedLayersPass) {
  for (const char* layer : {"two-head", "two-head-unequal"}) {
    const CommandResult result = Run({"audit", layer}, false);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr(", 0 failed"));
    EXPECT_THAT(result.out, HasSubstr("separate_vs_combined"));
  }
  ASSERT_EQ(
      Run({"load", "m", "--checkpoint", "data/smollm2", "--layer", "0", "--dtype", "int8"}, false)
          .exit_code,
      0);
  const CommandResult int8 = Run({"audit", "m"}, false);
  EXPECT_EQ(int8.exit_code, 0) << int8.out << int8.err;
}

TEST_F(Audit, WhatForwardWritesIsRight) {
  const std::string path = dir_.Path("own.safetensors");
  ASSERT_EQ(
      Run({"forward", "two-head", "--return", "y,z,p,scores,q,k,v", "--output", path}).exit_code,
      0);
  const CommandResult result = Run({"audit", "two-head", "--theirs", path, "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.json().at("verdict"), "right");
  EXPECT_EQ(result.json().at("stages").size(), 7u);
}

TEST_F(Audit, WrongNumbersAreExplainedOrNot) {
  std::vector<float> y = Y();
  for (size_t e = 0; e < y.size(); ++e) y[e] *= 1.0f / 0.9f;  // no b_o: dropout's factor shows
  CommandResult result = Run({"audit", "two-head", "--theirs", WriteY(y), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.json().at("verdict"), "explained");
  EXPECT_EQ(result.json().at("explanations").at(0).at("mistakes").at(0), "dropout_scale");
  y[5] += 5.0f;
  result = Run({"audit", "two-head", "--theirs", WriteY(y), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.json().at("verdict"), "unexplained");
  EXPECT_EQ(result.json().at("first_difference"), "y");
  EXPECT_THAT(Run({"audit", "two-head", "--theirs", WriteY(y)}).out, HasSubstr("unexplained: y"));
}

TEST_F(Audit, AnAblationThatWasMeantIsRight) {
  const std::string path = dir_.Path("ablated.safetensors");
  ASSERT_EQ(Run({"ablate", "two-head", "--heads", "1", "--output", path}).exit_code, 0);
  const std::vector<float> y = ReadFloats(**SafetensorsFile::Open(path), "ablation.0.y");
  EXPECT_EQ(Run({"audit", "two-head", "--theirs", WriteY(y), "--heads", "1"}).exit_code, 0);
  EXPECT_EQ(Run({"audit", "two-head", "--theirs", WriteY(y)}).exit_code, 3);
}

TEST_F(Audit, AnInputThatTellsExplanationsApartIsWritten) {
  // Of one token alone every weight is 1: much that is wrong elsewhere looks the same.
  const std::string one = dir_.Path("one.safetensors");
  const OwnedTensor x = FloatTensor({1, 4}, {1, 0, 2, 0});
  ASSERT_TRUE(WriteSafetensors(one, {{"x", x.view()}}).ok());
  const std::string file = dir_.Path("row.safetensors");
  // Head outputs swapped: heads_reversed and heads_rolled agree on every input of two heads.
  const OwnedTensor swapped = FloatTensor({1, 4}, {2, 4, -2, 6});
  ASSERT_TRUE(WriteSafetensors(file, {{"y", swapped.view()}}).ok());
  const std::string path = dir_.Path("apart.safetensors");
  const CommandResult result = server_.Headwise(
      {"audit", "two-head", "--input", one, "--theirs", file, "--distinguish", path, "--json"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const json answer = result.json();
  EXPECT_EQ(answer.at("verdict"), "explained") << result.out;
  EXPECT_EQ(answer.at("distinguishable"), false) << result.out;
  EXPECT_NE(answer.at("distinguishing_note"), "");
  if (answer.at("distinguishing_input") != "") {
    const auto written = SafetensorsFile::Open(path);
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_NE((*written)->Find("x"), nullptr);
  }
}

TEST_F(Audit, RefusalsExitWithOne) {
  EXPECT_EQ(Run({"audit", "none"}, false).exit_code, 1);
  const CommandResult wrong =
      Run({"audit", "two-head-unequal", "--theirs", WriteY(Y()), "--heads", "9"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("ablation.heads: "));
}

// Rows of x through Gemma's RMSNorm once more.
std::vector<float> NormAgain(std::vector<float> x, const std::vector<float>& weight) {
  for (size_t at = 0; at < x.size(); at += weight.size()) {
    double squares = 0.0;
    for (size_t i = 0; i < weight.size(); ++i) squares += std::pow(x[at + i], 2);
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(weight.size()) + 1e-6);
    for (size_t i = 0; i < weight.size(); ++i) {
      const double normed = static_cast<double>(x[at + i]) * factor;
      x[at + i] = static_cast<float>(normed * (1.0 + static_cast<double>(weight[i])));
    }
  }
  return x;
}

// A checkpoint's layer, one saved and one derived all keep the norm before them.
TEST(AuditOfACheckpoint, NamesTheNormAppliedTwice) {
  const ServerProcess server;
  const TempDir dir;
  const std::string folder = "golden/gemma2_softcap_alternating";
  const std::string expected = TestDataPath(folder + "/expected.safetensors");
  const std::string saved = dir.Path("saved.safetensors");
  server.HeadwiseJson({"load", "g", "--checkpoint", folder, "--layer", "1"});
  server.HeadwiseJson({"save", "g", "--output", saved});
  server.HeadwiseJson({"load", "again", "--layer-file", saved});
  server.HeadwiseJson({"combine", "g", "--as", "fused"});

  const std::vector<float> x = NormAgain(ReadFloats(**SafetensorsFile::Open(expected), "layer1.x"),
                                         ReadFloats(*OpenSafetensors(folder + "/model.safetensors"),
                                                    "model.layers.1.input_layernorm.weight"));
  const std::string twice = dir.Path("twice.safetensors"), y = dir.Path("y.safetensors");
  const OwnedTensor tensor = FloatTensor({22, 48}, x);
  ASSERT_TRUE(WriteSafetensors(twice, {{"x", tensor.view()}}).ok());
  const std::vector<std::string> lengths = {"--lengths-from", expected + ":lengths"};
  ASSERT_EQ(
      server.Headwise({"forward", "g", "--input", twice, lengths[0], lengths[1], "--output", y})
          .exit_code,
      0);
  for (const char* name : {"g", "again", "fused"}) {
    const CommandResult result =
        server.Headwise({"audit", name, "--input", expected + ":layer1.x", lengths[0], lengths[1],
                         "--theirs", y + ":y", "--json"});
    EXPECT_EQ(result.exit_code, 3) << result.err;
    const json answer = result.json();
    ASSERT_EQ(answer.at("explanations").size(), 1u) << result.out;
    EXPECT_EQ(answer["explanations"][0]["mistakes"], json({"prenorm_twice"}));
  }
}

}  // namespace
}  // namespace headwise
