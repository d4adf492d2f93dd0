// SPDX-License-Identifier: Apache-2.0
#include "client/html_report.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "client/html_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::AblateResult Pairs() {
  v1::AblateResult result;
  result.set_layer("m<0>");
  result.mutable_scope()->set_text("2 sequences; measured at y & nowhere else");
  v1::AblationEffect* effect = result.add_ablations();
  effect->add_heads(3);
  effect->mutable_effect()->set_relative_l2(0.25);
  effect->mutable_intervals()->mutable_relative_l2()->set_low(0.2);
  effect->mutable_intervals()->mutable_relative_l2()->set_high(0.5);
  v1::Interaction* pair = result.add_interactions();
  pair->add_heads(3);
  pair->add_heads(7);
  pair->set_interaction(-0.5);
  v1::PruneStep* step = result.mutable_prune_plan()->add_steps();
  step->add_dropped(3);
  step->mutable_relative_l2()->set_ungated(0.3);
  return result;
}

TEST(HtmlReport, AblationsHaveTheirFigures) {
  const std::string page = AblationPage(Pairs());
  for (const char* part :
       {"id=\"effects\"", "id=\"interactions\"", "id=\"prune\"", "m&lt;0&gt;", "y &amp; nowhere",
        ">60 %<", "3, 7: -0.500", "<polyline", "change of y, relative L2", "heads dropped"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  // 25 % of an axis that ends at the next round tick after the interval's 50 %.
  EXPECT_THAT(page, HasSubstr("width=\"41.67%\" height=\"12\""));
}

v1::ForwardResponse Weights() {
  v1::ForwardResponse response;
  response.set_layer("m");
  for (const uint32_t length : {0u, 100u}) {
    v1::NamedTensor* p = response.add_tensors();
    p->set_name(absl::StrCat("p.", response.lengths_size()));
    response.add_lengths(length);
    p->set_dtype(v1::F32);
    for (const uint32_t axis : {2u, length, length}) p->add_shape(axis);
    for (const uint32_t id : {4u, 9u}) p->add_head_ids(id);
    // Head 4 looks at token 0, head 9 at itself.
    std::vector<float> weights(2 * length * length, 0.0f);
    for (size_t t = 0; t < length; ++t) {
      weights[t * length] = 1.0f;
      weights[(length + t) * length + t] = 1.0f;
    }
    p->set_data(weights.data(), weights.size() * sizeof(float));
  }
  return response;
}

TEST(HtmlReport, WeightsAreMapsOfEachHead) {
  const auto weights = FirstWeights(Weights());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->sequence, 1);  // the first that has tokens
  EXPECT_EQ(weights->queries, 100);
  const std::string page = ForwardPage(Weights(), *weights);
  // 100 tokens in blocks of 3: a column of 34 cells, and a diagonal whose last block is one token.
  for (const char* part : {"id=\"weights\"", "head 4, max 0.33", "head 9, max 1.00", "0 to 99",
                           "a cell is the mean of 3 x 3 tokens", "M0 0h1v1h-1zM0 1h1v1h-1z",
                           "M0 0h1v1h-1zM1 1h1v1h-1z"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  EXPECT_THAT(ForwardPage({}, *FirstWeights(v1::ForwardResponse())),
              HasSubstr("no weights to show"));
  v1::ForwardResponse broken = Weights();
  broken.mutable_tensors(1)->mutable_data()->resize(7);
  EXPECT_EQ(FirstWeights(broken).status().code(), absl::StatusCode::kInternal);
}

TEST(HtmlReport, HeadsComeWithIntervalsAndLikeness) {
  v1::AnalyzeHeadsResult analysis;
  for (const uint32_t id : {1u, 2u}) {
    v1::HeadStatistics* head = analysis.add_heads();
    head->set_head(id);
    head->mutable_self_mass()->set_value(0.25);
    head->mutable_self_mass()->mutable_interval()->set_low(0.125);
    head->mutable_self_mass()->mutable_interval()->set_high(0.5);
    head->add_directions()->set_value(2.0);
  }
  v1::HeadPair* pair = analysis.add_pairs();
  pair->add_heads(1);
  pair->add_heads(2);
  pair->mutable_cka()->set_value(0.75);
  const std::string page = AnalysisPage(analysis, {.absent = "Too large to show."});
  for (const char* part : {"0.250 [0.125, 0.500]", "direction 0", "id=\"similarity\"",
                           "1, 2: 0.750", "dendrogram order", "Too large to show."}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

TEST(HtmlReport, PagesNeedNothingElse) {
  v1::AnalyzeHeadsResult analysis;
  analysis.add_heads()->set_head(1);
  for (const std::string& page : {AblationPage(Pairs()), AnalysisPage(analysis, {}),
                                  ForwardPage(Weights(), *FirstWeights(Weights()))}) {
    for (const char* outside : {"http", "<script", "<link", "src=", "url("}) {
      EXPECT_THAT(page, Not(HasSubstr(outside)));
    }
    EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_THAT(page, HasSubstr("width=device-width"));
  }
}

TEST(HtmlReport, ScalesEndAtRoundNumbers) {
  for (const auto& [largest, top, step] : std::vector<std::array<double, 3>>{{0.52, 0.6, 0.2},
                                                                             {0.798, 0.8, 0.2},
                                                                             {0.968, 1.0, 0.25},
                                                                             {1.0, 1.0, 0.25},
                                                                             {0.0031, 0.004, 0.001},
                                                                             {2.2, 3.0, 1.0},
                                                                             {0.0, 1.0, 0.25}}) {
    EXPECT_NEAR(ScaleFor(largest).top, top, 1e-12) << largest;
    EXPECT_NEAR(ScaleFor(largest).step, step, 1e-12) << largest;
  }
}

TEST(HtmlReport, LikeHeadsAreNeighbours) {
  // 0 and 3 alike, 1 and 2 alike.
  std::vector<double> similarity(16, 0.1);
  similarity[3] = similarity[12] = 0.9;
  similarity[6] = similarity[9] = 0.8;
  EXPECT_THAT(DendrogramOrder(similarity, 4), ElementsAre(0, 3, 1, 2));
  EXPECT_THAT(DendrogramOrder({}, 0), ElementsAre());
}

TEST(HtmlReport, FilesThatCannotBeWrittenAreRefused) {
  EXPECT_FALSE(WritePage("/nonexistent/report.html", "page").ok());
}

}  // namespace
}  // namespace headwise::client
