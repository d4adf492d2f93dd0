// SPDX-License-Identifier: Apache-2.0
// docs/commands.md is what the programs print of themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/e2e/process.h"
#include "tests/support/bytes.h"

namespace headwise {
namespace {

TEST(Reference, TheCommandsPageIsWhatTheProgramsPrint) {
  std::ifstream file(TestDataPath("../docs/commands.md"));
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t begin = page.find("## headwise\n");
  ASSERT_NE(begin, std::string::npos);
  const CommandResult client = RunProgram("headwise", {"--reference"});
  const CommandResult load = RunProgram("headwise-load", {"--reference"});
  EXPECT_EQ(page.substr(begin), client.out + load.out)
      << "make it anew: ./dev exec tests/e2e/make_reference.sh";
}

TEST(Reference, EveryProgramSaysItsVersion) {
  const std::string version = RunProgram("headwise-server", {"--version"}).out;
  const std::string number = version.substr(version.find(' '));
  EXPECT_THAT(number, ::testing::MatchesRegex(" [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  for (const char* program : {"headwise", "headwise-load"}) {
    const CommandResult said = RunProgram(program, {"--version"});
    EXPECT_EQ(said.exit_code, 0);
    EXPECT_EQ(said.out, program + number);
  }
}

}  // namespace
}  // namespace headwise
