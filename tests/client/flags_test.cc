// SPDX-License-Identifier: Apache-2.0
#include "client/flags.h"

#include <string>
#include <vector>

#include "client/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Flag kFlags[] = {{"input", "F", "a file"}, {"scale", "G", "a number"}, {"json", "", "JSON"}};

std::string ErrorOf(const std::vector<std::string>& words) {
  const absl::StatusOr<Args> args = Args::Parse(words, kFlags);
  EXPECT_FALSE(args.ok());
  EXPECT_TRUE(IsUsageError(args.status()));
  return std::string(args.status().message());
}

TEST(ArgsTest, TakesFlagsAnywhereInBothSpellings) {
  const std::vector<std::string> words = {"--input", "a.npy", "m0", "--scale=-1", "--json", "m1"};
  const absl::StatusOr<Args> args = Args::Parse(words, kFlags);
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_THAT(args->positional(), ElementsAre("m0", "m1"));
  EXPECT_EQ(args->Text("input"), "a.npy");
  EXPECT_EQ(args->Number("scale")->value(), -1);
  EXPECT_TRUE(args->Has("json"));
}

TEST(ArgsTest, TakesAValueThatStartsWithOneDash) {
  const std::vector<std::string> words = {"--scale", "-0.5", "--input", "-"};
  const absl::StatusOr<Args> args = Args::Parse(words, kFlags);
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_EQ(args->Number("scale")->value(), -0.5);
  EXPECT_EQ(args->Text("input"), "-");
}

TEST(ArgsTest, EndsFlagsAtTwoDashes) {
  const std::vector<std::string> words = {"--", "--json"};
  const absl::StatusOr<Args> args = Args::Parse(words, kFlags);
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_THAT(args->positional(), ElementsAre("--json"));
}

TEST(ArgsTest, RefusesWhatTheGrammarDoesNotKnow) {
  EXPECT_THAT(ErrorOf({"--frob"}), HasSubstr("unknown flag --frob"));
  EXPECT_THAT(ErrorOf({"-x"}), HasSubstr("unknown flag -x"));
  EXPECT_THAT(ErrorOf({"--frob=1"}), HasSubstr("unknown flag --frob"));
  EXPECT_THAT(ErrorOf({"--json=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--input"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--input", "--json"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--input", "a", "--input", "b"}), HasSubstr("given twice"));
}

absl::StatusOr<Args> One(const std::string& flag, const std::string& value) {
  static const Flag kAny[] = {{"n", "N", ""}, {"list", "L", ""}, {"time", "T", ""}, {"c", "C", ""}};
  return Args::Parse(std::vector<std::string>{"--" + flag, value}, kAny);
}

TEST(ArgsTest, ReadsNumbersAndLists) {
  EXPECT_EQ(One("n", "7")->Uint("n")->value(), 7u);
  EXPECT_THAT(*One("list", "0,3")->UintList("list"), ElementsAre(0, 3));
  EXPECT_EQ(*One("time", "500ms")->Time("time", absl::Seconds(1)), absl::Milliseconds(500));
  EXPECT_EQ(*One("n", "7")->Time("time", absl::Seconds(1)), absl::Seconds(1));
  EXPECT_FALSE(One("n", "7")->Uint("list")->has_value());
}

TEST(ArgsTest, CallsMalformedValuesUsageErrors) {
  for (const char* text : {"", "x", "-1", "1.5", "4294967296"}) {
    EXPECT_TRUE(IsUsageError(One("n", text)->Uint("n").status())) << text;
  }
  for (const char* text : {"", "0,", ",1", "0;3", "a"}) {
    EXPECT_TRUE(IsUsageError(One("list", text)->UintList("list").status())) << text;
  }
  for (const char* text : {"", "30", "-1s", "0s", "s", "inf", "1001h"}) {
    EXPECT_TRUE(IsUsageError(One("time", text)->Time("time", absl::Seconds(1)).status())) << text;
  }
  for (const char* text : {"nan", "inf", ""}) {
    EXPECT_TRUE(IsUsageError(One("n", text)->Number("n").status())) << text;
  }
  EXPECT_THAT(One("c", "blue")->Choice("c", {"red", "green"}, 0).status().message(),
              HasSubstr("must be one of red, green; was \"blue\""));
}

TEST(StatusTest, PrintsOneLineWhateverTheMessage) {
  EXPECT_EQ(ErrorLine("headwise", absl::NotFoundError("a\nb\tc")), "headwise: NOT_FOUND: a b c");
  EXPECT_EQ(ErrorLine("headwise", UsageError("oh")), "headwise: oh");
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 1);
  EXPECT_EQ(ExitCodeOf(UsageError("")), 2);
}

}  // namespace
}  // namespace headwise::client
