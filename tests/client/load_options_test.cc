// SPDX-License-Identifier: Apache-2.0
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/load/load_app.h"
#include "client/load/options.h"
#include "client/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<LoadOptions> Read(const std::vector<std::string>& words) {
  const absl::StatusOr<Args> args = Args::Parse(words, LoadFlags());
  if (!args.ok()) return args.status();
  return ReadLoadOptions(*args);
}

TEST(LoadOptionsTest, HasTheInterfacesDefaults) {
  const auto options = Read({"m0"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->layer, "m0");
  EXPECT_THAT(options->targets, ElementsAre("127.0.0.1:8500"));
  EXPECT_FALSE(options->open_loop);
  EXPECT_EQ(options->concurrency, 1u);
  EXPECT_EQ(options->connections, 1u);
  EXPECT_EQ(options->lengths, "fixed:128");
  EXPECT_EQ(options->duration, absl::Seconds(10));
}

TEST(LoadOptionsTest, ReadsEveryFlag) {
  const auto options = Read({"--server",  "a:1,b:2",
                             "m0",        "--rate",
                             "50.5",      "--arrivals",
                             "poisson",   "--duration",
                             "1m",        "--connections=8",
                             "--lengths", "uniform:16-512",
                             "--method",  "mix",
                             "--seed",    "3",
                             "--warmup",  "20",
                             "--json",    "-",
                             "--timeout", "5s"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->targets, ElementsAre("a:1", "b:2"));
  EXPECT_TRUE(options->open_loop);
  EXPECT_TRUE(options->poisson);
  EXPECT_EQ(options->rate, 50.5);
  EXPECT_EQ(options->concurrency, 0u);
  EXPECT_EQ(options->duration, absl::Minutes(1));
  EXPECT_EQ(options->connections, 8u);
  EXPECT_EQ(options->mix, Mix::kMix);
  EXPECT_EQ(options->seed, 3u);
  EXPECT_EQ(options->warmup, 20u);
  EXPECT_EQ(options->json, "-");
}

TEST(LoadOptionsTest, CallsWrongGrammarUsageErrors) {
  const std::vector<std::vector<std::string>> kWrong = {
      {},
      {"m0", "m1"},
      {"m0", "--rate", "0"},
      {"m0", "--rate", "-5"},
      {"m0", "--rate", "x"},
      {"m0", "--arrivals", "poisson"},
      {"m0", "--concurrency", "0"},
      {"m0", "--connections", "0"},
      {"m0", "--duration", "10"},
      {"m0", "--method", "both"},
      {"m0", "--server", "a:1,"},
      {"m0", "--json", ""},
      {"m0", "--html", ""},
      {"m0", "--threshold", "p99"},
      {"m0", "--find-rate", "p99>20ms"},
      {"m0", "--schedule", "5"},
      {"m0", "--schedule", "5:1s", "--rate", "5"},
      {"m0", "--repeat", "0"},
      {"m0", "--find-rate", "p99<2ms", "--repeat", "5"},
      {"m0", "--server", "a:1,b:1", "--connections", "1"},
      {"compare", "a.json"},
      {"compare", "a.json", "b.json", "--tolerance", "-1"},
      {"m0", "--frob"}};
  for (const auto& words : kWrong) {
    EXPECT_TRUE(IsUsageError(Read(words).status())) << ::testing::PrintToString(words);
    std::ostringstream out, err;
    EXPECT_EQ(RunHeadwiseLoad(words, {}, false, out, err), 2);
    EXPECT_THAT(out.str(), IsEmpty());
    EXPECT_THAT(err.str(), HasSubstr("(see headwise-load --help)\n"));
  }
}

TEST(LoadOptionsTest, ReadsSchedulesSearchesAndSeveralServers) {
  const auto steps = Read({"m0,m1", "--schedule", "10:1s,10-30:2s", "--server", "a:1,b:2"});
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_TRUE(steps->open_loop);
  EXPECT_DOUBLE_EQ(steps->rate, 50.0 / 3);
  EXPECT_EQ(steps->duration, absl::Seconds(3));
  EXPECT_THAT(steps->layers, ElementsAre("m0", "m1"));
  EXPECT_EQ(steps->connections, 2u);  // a server without a connection would get no call
  const auto search = Read({"m0", "--find-rate", "p99<20ms,errors<1%", "--arrivals", "poisson"});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_TRUE(search->open_loop);
  EXPECT_EQ(search->find_rate.size(), 2u);
}

TEST(LoadOptionsTest, HelpNamesEveryFlag) {
  std::ostringstream out, err;
  EXPECT_EQ(RunHeadwiseLoad(std::vector<std::string>{"--help"}, {}, false, out, err), 0);
  for (const Flag& flag : LoadFlags()) {
    EXPECT_THAT(out.str(), HasSubstr(absl::StrCat("--", flag.name)));
  }
}

}  // namespace
}  // namespace headwise::client
