// SPDX-License-Identifier: Apache-2.0
#include "client/html_report.h"

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
  for (const char* part : {"id=\"effects\"", "id=\"interactions\"", "id=\"prune\"", "m&lt;0&gt;",
                           "y &amp; nowhere", "50 %", "3, 7: -0.500", "<polyline"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  // The bar is half as long as the axis, whose end is the interval's.
  EXPECT_THAT(page, HasSubstr("width=\"235.0\" height=\"12\""));
}

TEST(HtmlReport, PagesNeedNothingElse) {
  v1::AnalyzeHeadsResult analysis;
  analysis.add_heads()->set_head(1);
  for (const std::string& page : {AblationPage(Pairs()), AnalysisPage(analysis)}) {
    for (const char* outside : {"http", "<script", "<link", "src=", "url("}) {
      EXPECT_THAT(page, Not(HasSubstr(outside)));
    }
    EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_THAT(page, HasSubstr("width=device-width"));
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
