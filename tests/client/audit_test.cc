// SPDX-License-Identifier: Apache-2.0
// The verb audit: what it asks, what it prints, how it exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/format/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_client.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AuditVerbTest : public ::testing::Test {
 protected:
  AuditVerbTest() {
    const OwnedTensor x = FloatTensor({3, 4}, std::vector<float>(12, 1.0f));
    const OwnedTensor p = FloatTensor({2, 3, 3}, std::vector<float>(18, 0.5f));
    x_ = dir_.Path("x.safetensors");
    theirs_ = dir_.Path("theirs.safetensors");
    EXPECT_TRUE(WriteSafetensors(x_, {{"x", x.view()}}).ok());
    EXPECT_TRUE(
        WriteSafetensors(theirs_, {{"y", x.view()}, {"z", x.view()}, {"p", p.view()}}).ok());
  }
  Outcome Run(std::vector<std::string> words) {
    words.insert(words.begin(), {"audit", "m"});
    return RunWith(&script_, words);
  }

  TempDir dir_;
  std::string x_, theirs_;
  Script script_;
};

TEST_F(AuditVerbTest, ChecksOfALayer) {
  v1::AuditCheck* check = script_.audit.add_checks();
  check->set_id("shapes");
  check->set_passed(true);
  check->set_bound_source("exact");
  script_.audit.set_passed(true);
  Outcome outcome = Run({});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_FALSE(script_.audit_request.has_input());
  EXPECT_FALSE(script_.audit_request.has_theirs());
  EXPECT_THAT(outcome.out, HasSubstr("1 checks, 0 failed"));
  check->set_passed(false);
  script_.audit.set_passed(false);
  outcome = Run({"--input", x_});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_TRUE(script_.audit_request.has_input());
  EXPECT_THAT(outcome.out, HasSubstr("FAILED"));
}

TEST_F(AuditVerbTest, SendsWhatTheFileHolds) {
  script_.audit.set_verdict("right");
  script_.audit.set_passed(true);
  const Outcome outcome = Run({"--input", x_, "--theirs", theirs_, "--dtype", "bf16", "--heads",
                               "1", "--kind", "scale", "--scale", "0.5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const v1::AuditRequest& request = script_.audit_request;
  EXPECT_TRUE(request.theirs().has_y());
  EXPECT_TRUE(request.theirs().has_z());
  EXPECT_FALSE(request.theirs().has_q());
  EXPECT_EQ(request.theirs().p_size(), 1);
  EXPECT_EQ(request.theirs().stated_dtype(), v1::BF16);
  EXPECT_EQ(request.ablation().interventions(0).heads(0), 1u);
  EXPECT_EQ(request.ablation().interventions(0).scale(), 0.5);
  EXPECT_FALSE(request.want_distinguishing_input());
  EXPECT_THAT(outcome.out, HasSubstr("right: "));
}

TEST_F(AuditVerbTest, ExplanationsAndTheInputThatTellsThemApart) {
  script_.audit.set_verdict("explained");
  script_.audit.set_first_difference("y");
  for (const char* id : {"wo_transposed", "wo_row_slices"}) {
    v1::Explanation* explanation = script_.audit.add_explanations();
    explanation->add_mistakes(id);
    explanation->set_text("W_O is wrong");
    explanation->set_fix("turn it");
  }
  Outcome outcome = Run({"--input", x_, "--theirs", theirs_});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("2 explanations"));
  EXPECT_THAT(outcome.out, HasSubstr("wo_row_slices: W_O is wrong"));
  EXPECT_THAT(outcome.out, HasSubstr("--distinguish"));

  v1::Tensor* x = script_.audit.mutable_distinguishing_x();
  x->set_dtype(v1::F32);
  x->add_shape(1);
  x->add_shape(4);
  x->set_data(std::string(16, '\0'));
  script_.audit.add_distinguishing_lengths(1);
  script_.audit.set_distinguishing_note("apart");
  const std::string path = dir_.Path("apart.safetensors");
  outcome = Run({"--input", x_, "--theirs", theirs_, "--distinguish", path, "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_TRUE(script_.audit_request.want_distinguishing_input());
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json.at("distinguishing_input"), path);
  EXPECT_EQ(json.at("distinguishable"), false);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE((*file)->Find("x"), nullptr);
  EXPECT_NE((*file)->Find("lengths"), nullptr);
}

TEST_F(AuditVerbTest, WrongUsageAndUnreadableFiles) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--dtype", "bf16"},
                                             {"--distinguish", "f"},
                                             {"--theirs", theirs_},
                                             {"--input", x_, "--theirs", theirs_, "--dtype", "f64"},
                                             {"--input", x_, "--theirs", theirs_, "--kind", "zero"},
                                             {"--lengths", "3"}}) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.exit_code, 2) << ::testing::PrintToString(words) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  const Outcome outcome = Run({"--input", x_, "--theirs", x_});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("NOT_FOUND"));
  EXPECT_EQ(script_.calls, 0);
}

}  // namespace
}  // namespace headwise::client
