// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_split.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = v1::Intervention;

// Three inputs: sequences of 3 and 2 tokens, of 1, of 4 and 5.
std::vector<InputPart> Parts() { return PartsOf({{3, 2}, {1}, {4, 5}}); }

v1::AblateRequest One(Kind::Kind kind) {
  v1::AblateRequest request;
  request.add_ablations()->add_interventions()->set_kind(kind);
  request.mutable_ablations(0)->mutable_interventions(0)->add_heads(1);
  return request;
}
v1::Intervention* First(v1::AblateRequest* request) {
  return request->mutable_ablations(0)->mutable_interventions(0);
}
v1::Intervention Part(const v1::AblateRequest& whole, size_t part) {
  return RequestForPart(whole, Parts()[part]).ablations(0).interventions(0);
}
bool Nothing(const v1::Intervention& intervention) {
  return intervention.kind() == Kind::SCALE && intervention.scale() == 1.0 &&
         intervention.heads_size() == 1 && intervention.sequences().empty();
}

TEST(AblateSplit, SequencesAreCountedThrough) {
  v1::AblateRequest whole = One(Kind::ZERO);
  EXPECT_FALSE(CountsThrough(whole));
  for (const uint32_t sequence : {1u, 3u, 4u}) First(&whole)->add_sequences(sequence);
  EXPECT_TRUE(CountsThrough(whole));
  EXPECT_TRUE(CheckWhole(whole, Parts()).ok());
  EXPECT_THAT(Part(whole, 0).sequences(), ElementsAre(1));
  EXPECT_TRUE(Nothing(Part(whole, 1)));
  EXPECT_THAT(Part(whole, 2).sequences(), ElementsAre(0, 1));
  First(&whole)->add_sequences(5);
  EXPECT_THAT(std::string(CheckWhole(whole, Parts()).message()), HasSubstr("[0, 5); was 5"));
}

TEST(AblateSplit, TokenRangesMaySkipAnInput) {
  v1::AblateRequest whole = One(Kind::ZERO);
  First(&whole)->set_token_begin(2);
  EXPECT_EQ(Part(whole, 0).kind(), Kind::ZERO);
  EXPECT_TRUE(Nothing(Part(whole, 1)));
  EXPECT_EQ(Part(whole, 2).token_begin(), 2u);
  First(&whole)->set_token_begin(5);
  EXPECT_THAT(std::string(CheckWhole(whole, Parts()).message()), HasSubstr("[5, end)"));
}

TEST(AblateSplit, EdgesGoToTheirSequences) {
  v1::AblateRequest whole = One(Kind::KNOCKOUT);
  for (const uint32_t sequence : {0u, 4u}) {
    v1::Edge* edge = First(&whole)->add_edges();
    edge->set_sequence(sequence);
    edge->set_query(1);
  }
  EXPECT_TRUE(CheckWhole(whole, Parts()).ok());
  EXPECT_EQ(Part(whole, 0).edges(0).sequence(), 0u);
  EXPECT_TRUE(Nothing(Part(whole, 1)));
  EXPECT_EQ(Part(whole, 2).edges_size(), 1);
  EXPECT_EQ(Part(whole, 2).edges(0).sequence(), 1u);
  EXPECT_EQ(Part(whole, 2).edges(0).query(), 1u);
  First(&whole)->add_edges()->set_sequence(9);
  EXPECT_THAT(std::string(CheckWhole(whole, Parts()).message()), HasSubstr("was 9"));
}

TEST(AblateSplit, RowsGoToTheirTokens) {
  v1::AblateRequest whole = One(Kind::REPLACE);
  v1::Tensor* rows = First(&whole)->mutable_tensor();
  rows->set_dtype(v1::BOOL);  // one byte an element is enough here
  rows->add_shape(15);
  rows->add_shape(2);
  rows->set_data("aabbccddeeffgghhiijjkkllmmnnoo");
  EXPECT_TRUE(CheckWhole(whole, Parts()).ok());
  EXPECT_EQ(Part(whole, 0).tensor().data(), "aabbccddee");
  EXPECT_EQ(Part(whole, 1).tensor().data(), "ff");
  EXPECT_EQ(Part(whole, 2).tensor().shape(0), 9u);
  rows->set_shape(0, 14);
  EXPECT_THAT(std::string(CheckWhole(whole, Parts()).message()), HasSubstr("15 rows"));
}

TEST(AblateSplit, DonorsOfEverySequenceAreCut) {
  v1::AblateRequest whole = One(Kind::DONOR);
  v1::AttentionInput* donor = First(&whole)->mutable_donor();
  donor->mutable_x()->set_dtype(v1::BOOL);
  donor->mutable_x()->add_shape(15);
  donor->mutable_x()->add_shape(1);
  donor->mutable_x()->set_data("abcdefghijklmno");
  EXPECT_FALSE(CountsThrough(whole));  // one sequence serves all
  for (const uint32_t length : {3u, 2u, 1u, 4u, 5u}) donor->add_lengths(length);
  EXPECT_TRUE(CountsThrough(whole));
  EXPECT_TRUE(CheckWhole(whole, Parts()).ok());
  EXPECT_EQ(Part(whole, 1).donor().x().data(), "f");
  EXPECT_THAT(Part(whole, 2).donor().lengths(), ElementsAre(4, 5));
  EXPECT_EQ(Part(whole, 2).donor().x().data(), "ghijklmno");
  donor->add_lengths(0);
  EXPECT_THAT(std::string(CheckWhole(whole, Parts()).message()), HasSubstr("or 5"));
  donor->mutable_lengths()->RemoveLast();
  donor->mutable_x()->set_shape(0, 14);
  EXPECT_THAT(std::string(CheckWhole(whole, Parts()).message()), HasSubstr("15 rows"));
}

TEST(AblateSplit, SweepsAreCutToo) {
  v1::AblateRequest whole;
  whole.set_sweep(v1::LEAVE_ONE_OUT);
  whole.mutable_sweep_intervention()->set_kind(Kind::MEAN);
  whole.mutable_sweep_intervention()->set_token_begin(3);
  EXPECT_TRUE(CountsThrough(whole));
  const v1::AblateRequest part = RequestForPart(whole, Parts()[0]);
  EXPECT_EQ(part.sweep_intervention().kind(), Kind::SCALE);
  EXPECT_EQ(RequestForPart(whole, Parts()[2]).sweep_intervention().kind(), Kind::MEAN);
}

}  // namespace
}  // namespace headwise::client
