// SPDX-License-Identifier: Apache-2.0
#include "client/report.h"

#include "gtest/gtest.h"

namespace headwise::client {
namespace {

TEST(TableTest, AlignsColumns) {
  Table table({{"name"}, {"D", Table::Align::kRight}});
  table.Add({"m0", "384"});
  table.Add({"longer", "4"});
  EXPECT_EQ(table.Render({}), "name      D\nm0      384\nlonger    4\n");
}

TEST(TableTest, KeepsControlCharactersOffTheScreen) {
  Table table({{"name"}});
  table.Add({"a\033[2Jb\n"});
  EXPECT_EQ(table.Render({}), "name\na?[2Jb?\n");
}

TEST(TableTest, UsesColoursOnlyWhereWanted) {
  Table table({{"name"}});
  table.Add({"a"});
  EXPECT_EQ(table.Render({.colour = true}), "\033[1mname\033[0m\na\n");
}

TEST(BarTest, ScalesAndSurvivesOddValues) {
  EXPECT_EQ(Bar(1, 2, 4, {}), "##");
  EXPECT_EQ(Bar(2, 2, 3, {.utf8 = true}), "▇▇▇");
  EXPECT_EQ(Bar(1e-9, 2, 4, {}), "#");
  EXPECT_EQ(Bar(0, 2, 4, {}), "");
  EXPECT_EQ(Bar(1, 0, 4, {}), "");
  EXPECT_EQ(Bar(__builtin_nan(""), 1, 4, {}), "");
  EXPECT_EQ(Bar(__builtin_inf(), 1, 4, {}), "");
}

TEST(HumanTest, NamesUnits) {
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(2365440), "2.26 MiB");
  EXPECT_EQ(HumanMicros(340), "340 us");
  EXPECT_EQ(HumanMicros(12345), "12.3 ms");
  EXPECT_EQ(HumanMicros(999600), "1000 ms");
  EXPECT_EQ(HumanMicros(2.4e6), "2.40 s");
  EXPECT_EQ(Grouped(1048576), "1,048,576");
  EXPECT_EQ(Grouped(-100), "-100");
  EXPECT_EQ(Grouped(-1000), "-1,000");
  EXPECT_EQ(CompactList({0, 1, 2, 3, 7, 9, 10}), "0-3,7,9,10");
  EXPECT_EQ(CompactList({}), "");
}

}  // namespace
}  // namespace headwise::client
