// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_request.h"

#include <string>
#include <vector>

#include "client/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<v1::AblateRequest> Build(const std::vector<std::string>& words) {
  const absl::StatusOr<Args> args = Args::Parse(words, AblateFlags());
  if (!args.ok()) return args.status();
  return BuildAblateRequest(*args, "m0");
}

TEST(AblateRequestTest, HeadsAreOneAblationOfAllOfThemZeroByDefault) {
  const auto request = Build({"--heads", "0,3"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->layer(), "m0");
  ASSERT_EQ(request->ablations_size(), 1);
  ASSERT_EQ(request->ablations(0).interventions_size(), 1);
  const v1::Intervention& intervention = request->ablations(0).interventions(0);
  EXPECT_EQ(intervention.kind(), v1::Intervention::ZERO);
  EXPECT_THAT(intervention.heads(), ElementsAre(0, 3));
  EXPECT_FALSE(intervention.has_token_end());
  EXPECT_FALSE(request->return_y());
}

TEST(AblateRequestTest, GroupsScaleAndTokens) {
  const auto request =
      Build({"--groups", "1", "--kind", "scale", "--scale", "0.5", "--tokens-range", "2:7"});
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::Intervention& intervention = request->ablations(0).interventions(0);
  EXPECT_THAT(intervention.groups(), ElementsAre(1));
  EXPECT_EQ(intervention.kind(), v1::Intervention::SCALE);
  EXPECT_EQ(intervention.scale(), 0.5);
  EXPECT_EQ(intervention.token_begin(), 2u);
  EXPECT_EQ(intervention.token_end(), 7u);
}

TEST(AblateRequestTest, SweepsTakeTargetAndIntervention) {
  const auto request = Build({"--sweep", "leave-one-out", "--target", "groups", "--gram"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sweep(), v1::LEAVE_ONE_OUT);
  EXPECT_EQ(request->target(), v1::GROUPS);
  EXPECT_EQ(request->sweep_intervention().kind(), v1::Intervention::ZERO);
  EXPECT_EQ(request->ablations_size(), 0);
  EXPECT_TRUE(request->return_gram());
}

TEST(AblateRequestTest, OutputAsksForEveryY) {
  const auto request = Build({"--heads", "0", "--output", "o.safetensors"});
  EXPECT_TRUE(request->return_y());
  EXPECT_TRUE(request->return_ablation_y());
}

TEST(AblateRequestTest, RefusesWrongGrammar) {
  const std::vector<std::vector<std::string>> kWrong = {{},
                                                        {"--heads", "0", "--groups", "1"},
                                                        {"--heads", "0", "--target", "heads"},
                                                        {"--sweep", "all"},
                                                        {"--heads", "0", "--kind", "scale"},
                                                        {"--heads", "0", "--scale", "2"},
                                                        {"--heads", "0", "--tokens-range", "3"},
                                                        {"--heads", "0", "--tokens-range", "a:b"},
                                                        {"--ablations", "f", "--kind", "zero"}};
  for (const auto& words : kWrong) {
    EXPECT_TRUE(IsUsageError(Build(words).status())) << ::testing::PrintToString(words);
  }
}

TEST(ParseAblationsTest, TakesAListOneOrAWholeRequest) {
  const std::string one =
      R"({"interventions":[{"kind":"SCALE","heads":[1],"scale":0.5,"token_begin":1}]})";
  for (const std::string& json :
       {one, "[" + one + "]", R"({"ablations":[)" + one + R"(],"return_y":true})"}) {
    const auto request = ParseAblations(json);
    ASSERT_TRUE(request.ok()) << request.status();
    ASSERT_EQ(request->ablations_size(), 1);
    EXPECT_EQ(request->ablations(0).interventions(0).scale(), 0.5);
  }
}

TEST(ParseAblationsTest, RefusesUnknownKeysAndNoJson) {
  for (const char* json : {"{\"interventions\":[{\"kindd\":\"ZERO\"}]}", "[", "", "[1]"}) {
    EXPECT_EQ(ParseAblations(json).status().code(), absl::StatusCode::kInvalidArgument) << json;
  }
}

TEST(AblateRequestTest, ReadsAblationsFromAFile) {
  const TempDir dir;
  const std::string file = dir.Write("a.json", R"([{"interventions":[]}])");
  const auto request = Build({"--ablations", file});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->ablations_size(), 1);
  EXPECT_EQ(Build({"--ablations", dir.Path("absent")}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace headwise::client
