// SPDX-License-Identifier: Apache-2.0
// count: of widths typed here, of served layers, and of one width cut into heads.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_client.h"

namespace headwise::client {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(CountVerbTest, CountsTheSeedsExampleWithoutAServer) {
  Script script;
  const Outcome outcome = RunWith(&script, {"count", "--width", "512", "--heads", "8", "--batch",
                                            "2", "--queries", "10", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["dk"], json::array({64, 64, 64, 64, 64, 64, 64, 64}));
  EXPECT_EQ(answer["score_shape"], json::array({2, 8, 10, 10}));
  EXPECT_EQ(answer["keys"], 10);
  EXPECT_EQ(answer["counts"][0], json({{"id", "score_elements"},
                                       {"value", "1600"},
                                       {"unit", "element"},
                                       {"convention", "B*H*T*S, dense"}}));
  EXPECT_EQ(script.calls, 0);
}

TEST(CountVerbTest, RefusesAWidthThatHeadsDoNotDivide) {
  Script script;
  const Outcome outcome = RunWith(&script, {"count", "--width", "512", "--heads", "7"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err,
            "headwise: INVALID_ARGUMENT: width: model width must divide evenly across heads; was "
            "512 for 7\n");
}

TEST(CountVerbTest, ComparesHeadCountsOfTheSameWidth) {
  Script script;
  const std::vector<std::string> words = {"count",     "--width", "512",           "--heads", "8",
                                          "--queries", "10",      "--head-counts", "1,8"};
  const Outcome text = RunWith(&script, words);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("Changes: the width and scale of a head, patterns a query, score "
                                  "elements, score elements causal, score tensor bytes."));
  EXPECT_THAT(text.out, HasSubstr("error 0.7071, 50 % of the wanted reading"));
  EXPECT_THAT(text.out, HasSubstr("the least error is 70.7 %"));
  std::vector<std::string> as_json = words;
  as_json.push_back("--json");
  const json answer = json::parse(RunWith(&script, as_json).out);
  EXPECT_EQ(answer["head_counts"][0]["dk"], 512);
  EXPECT_EQ(answer["head_counts"][1]["counts"][0]["value"], "800");
  EXPECT_EQ(answer["changes"].size(), 3u);
  EXPECT_NEAR(answer["one_hot_readings"]["error"].get<double>(), 0.70710678, 1e-8);
  EXPECT_EQ(script.calls, 0);
  const Outcome refused =
      RunWith(&script, {"count", "--width", "512", "--heads", "8", "--head-counts", "3"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("head_counts: must divide"));
  EXPECT_EQ(
      RunWith(&script, {"count", "--width", "8", "--heads", "2", "--head-counts", "x"}).exit_code,
      2);
}

TEST(CountVerbTest, AsksTheServerForALayer) {
  Script script;
  script.details = TwoHeadDetails(3);
  v1::Count* count = script.details.add_counts();
  count->set_id("parameters");
  count->set_value(int64_t{1} << 40);
  const Outcome outcome =
      RunWith(&script, {"count", "two", "--queries", "3", "--keys", "5", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(script.get_request.queries(), 3u);
  EXPECT_EQ(script.get_request.keys(), 5u);
  EXPECT_EQ(script.get_request.batch(), 1u);
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["dk"], json::array({2, 2}));
  EXPECT_EQ(answer["dv"], json::array({3, 3}));
  EXPECT_EQ(answer["counts"][0]["value"], "1099511627776");
}

TEST(CountVerbTest, ShowsPartsAndKeepsCountsItDoesNotKnow) {
  Script script;
  const Outcome typed = RunWith(
      &script, {"count", "--width", "8", "--heads", "2", "--kv-heads", "1", "--queries", "3"});
  EXPECT_EQ(typed.exit_code, 0) << typed.err;
  EXPECT_THAT(typed.out, HasSubstr("32         36  D * G*dk, and b_k"));
  EXPECT_THAT(typed.out, HasSubstr("scores q.k "));
  EXPECT_THAT(typed.out, HasSubstr("k and v bytes per token"));
  script.details.mutable_spec()->set_heads(1);
  v1::Count* later = script.details.add_counts();
  later->set_id("phases_of_the_moon");
  later->set_value(8);
  later->set_convention("as seen from here");
  const Outcome served = RunWith(&script, {"count", "m"});
  EXPECT_EQ(served.exit_code, 0) << served.err;
  EXPECT_THAT(served.out, HasSubstr("phases of the moon"));
  EXPECT_THAT(served.out, HasSubstr("as seen from here"));
}

}  // namespace
}  // namespace headwise::client
