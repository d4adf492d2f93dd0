// SPDX-License-Identifier: Apache-2.0
#include "server/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "server/flag_table.h"
#include "tests/support/bytes.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

TEST(Flags, DefaultsAreTheDocumentedOnes) {
  const absl::StatusOr<ServerOptions> options = ParseFlags({});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->listen, "127.0.0.1:8500");
  EXPECT_EQ(options->metrics, "127.0.0.1:8501");
  EXPECT_EQ(options->max_message_bytes, 256 << 20);
  EXPECT_EQ(options->grace, absl::Seconds(30));
  EXPECT_TRUE(options->reflection);
  EXPECT_FALSE(options->threads.has_value());
}

TEST(Flags, BothSpellingsOfAValue) {
  const absl::StatusOr<ServerOptions> options =
      ParseFlags({"--listen=0.0.0.0:1", "--repository", "models", "--threads", "3", "--grace=1m30s",
                  "--noreflection", "--demo", "--max-message-bytes=1MiB", "--kernel=primitive",
                  "--max-batch-requests=1", "--metrics="});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, "0.0.0.0:1");
  EXPECT_EQ(options->repository, "models");
  EXPECT_EQ(options->threads, 3);
  EXPECT_EQ(options->grace, absl::Seconds(90));
  EXPECT_FALSE(options->reflection);
  EXPECT_TRUE(options->demo);
  EXPECT_EQ(options->max_message_bytes, 1 << 20);
  EXPECT_EQ(options->kernel, KernelPath::kPrimitive);
  EXPECT_EQ(options->max_batch_requests, 1);
  EXPECT_EQ(options->metrics, "");
}

TEST(Flags, LoadMayBeRepeated) {
  const absl::StatusOr<ServerOptions> options =
      ParseFlags({"--load=a=minilm:0", "--load", "b=deep/er:cross.1:BF16"});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->loads.size(), 2u);
  EXPECT_EQ(options->loads[0].name, "a");
  EXPECT_EQ(options->loads[0].dtype, "f32");
  EXPECT_EQ(options->loads[1].dir, "deep/er");
  EXPECT_EQ(options->loads[1].layer, "cross.1");
  EXPECT_EQ(options->loads[1].dtype, "bf16");
}

TEST(Flags, RefusalsAreOneLine) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--lisen=x"},
                                             {"stray"},
                                             {"--"},
                                             {"--threads=0"},
                                             {"--threads=two"},
                                             {"--threads"},
                                             {"--grace=30"},
                                             {"--grace=-1s"},
                                             {"--demo=maybe"},
                                             {"--kernel=gpu"},
                                             {"--nolisten"},
                                             {"--load=minilm:0"},
                                             {"--load=a=minilm"},
                                             {"--load=a=minilm:0:f16"},
                                             {"--max-message-bytes=3GiB"},
                                             {"--max-message-bytes=-1"},
                                             {"--queue-tokens=1KiB"},
                                             {"--max-output-bytes=99999999999999999999"}}) {
    const absl::Status status = ParseFlags(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << arguments[0];
    EXPECT_THAT(std::string(status.message()), HasSubstr("; was ")) << arguments[0];
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << arguments[0];
  }
}

TEST(Flags, HelpNamesEveryFlagWithItsDefault) {
  const std::string help = FlagsHelp();
  for (const FlagLimit& limit : FlagLimits(ServerOptions())) {
    EXPECT_THAT(help, HasSubstr(limit.flag));
    EXPECT_FALSE(limit.unit.empty()) << limit.flag;
  }
  EXPECT_THAT(help, HasSubstr("(default 127.0.0.1:8500)"));
  EXPECT_THAT(help, HasSubstr("(default 30s)"));
}

// docs/operations.md has every flag, and the default that --help prints.
TEST(Flags, TheOperatorsPageHasThemAll) {
  std::ifstream file(TestDataPath("../docs/operations.md"));
  std::ostringstream page;
  page << file.rdbuf();
  for (const FlagGroup& group : FlagGroups()) {
    for (const Flag& flag : group.flags) {
      const std::string shown = FlagDefault(flag);
      const std::string row = absl::StrCat(
          "| `--", flag.name, "` | ", shown.empty() ? "" : absl::StrCat("`", shown, "`"), " |");
      EXPECT_THAT(page.str(), HasSubstr(row));
    }
  }
}

}  // namespace
}  // namespace headwise
