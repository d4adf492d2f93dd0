// SPDX-License-Identifier: Apache-2.0
// --config: a file of flags. What it must hold, where its faults are, and who wins.
#include "server/config_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/flag_table.h"
#include "server/flags.h"
#include "server/server_config.pb.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::testing::ContainerEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// What means something on a command line only.
const std::set<std::string>& NoFields() {
  static const auto* const names = new std::set<std::string>{"config", "help", "version"};
  return *names;
}

// The field that a flag must have: "optional int64", …
std::string FieldTypeOf(const Flag& flag) {
  if (std::holds_alternative<std::vector<StartupLayer> ServerOptions::*>(flag.member)) {
    return "repeated string";
  }
  if (std::holds_alternative<bool ServerOptions::*>(flag.member)) return "optional bool";
  const bool number = std::holds_alternative<int64_t ServerOptions::*>(flag.member) ||
                      std::holds_alternative<std::optional<int64_t> ServerOptions::*>(flag.member);
  // "64MiB" is no number to protobuf.
  return number && !absl::EndsWith(flag.name, "-bytes") ? "optional int64" : "optional string";
}

std::string TypeOf(const FieldDescriptor& field) {
  return absl::StrCat(field.is_repeated()    ? "repeated "
                      : field.has_presence() ? "optional "
                                             : "",
                      field.type_name());
}

std::map<std::string, std::string> FlagsAsFields() {
  std::map<std::string, std::string> fields;
  for (const FlagGroup& group : FlagGroups()) {
    for (const Flag& flag : group.flags) {
      if (NoFields().count(flag.name) > 0) continue;
      std::string name = flag.name;
      std::replace(name.begin(), name.end(), '-', '_');
      fields[name] = FieldTypeOf(flag);
    }
  }
  return fields;
}

class ConfigFile : public ::testing::Test {
 protected:
  // The options of a server that is started with this file, and with `arguments`.
  absl::StatusOr<ServerOptions> Options(absl::string_view text,
                                        std::vector<std::string> arguments = {}) {
    arguments.push_back(absl::StrCat("--config=", dir_.Write("server.textproto", text)));
    return ParseFlags(arguments);
  }

  // What it says to `text`, after the flag and the path.
  std::string Refusal(absl::string_view text) {
    const absl::Status status = Options(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    std::string message(status.message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u);
    const std::string start = absl::StrCat("--config: ", dir_.Path("server.textproto"), ":");
    EXPECT_THAT(message, StartsWith(start));
    return message.substr(std::min(start.size(), message.size()));
  }

  const TempDir dir_;
};

TEST_F(ConfigFile, HasAFieldForEveryFlagAndNoOther) {
  std::map<std::string, std::string> fields;
  const auto& message = *ServerConfig::descriptor();
  for (int i = 0; i < message.field_count(); ++i) {
    fields[message.field(i)->name()] = TypeOf(*message.field(i));
  }
  EXPECT_THAT(fields, ContainerEq(FlagsAsFields()));
}

TEST_F(ConfigFile, TakesEachFlagsDefault) {
  for (const FlagGroup& group : FlagGroups()) {
    for (const Flag& flag : group.flags) {
      if (NoFields().count(flag.name) > 0 || FieldTypeOf(flag) == "repeated string") continue;
      std::string name = flag.name;
      std::replace(name.begin(), name.end(), '-', '_');
      const std::string value = FlagDefault(flag).empty() ? "1" : FlagDefault(flag);
      const char* const quote = FieldTypeOf(flag) == "optional string" ? "\"" : "";
      const auto options = Options(absl::StrCat(name, ": ", quote, value, quote));
      EXPECT_TRUE(options.ok()) << options.status();
    }
  }
}

TEST_F(ConfigFile, SetsEveryKindOfFlag) {
  const absl::StatusOr<ServerOptions> options = Options(R"(
      # A comment.
      listen: "0.0.0.0:1"   repository: 'models'
      metrics: ""
      threads: 3
      queue_tokens: 77
      max_message_bytes: "2MiB"
      queue_bytes: "4096"
      reflection: false
      demo: true
      grace: "1m30s"
      kernel: "primitive"
      log_level: "debug"
      load: "a=minilm:0"
      load: "b=deep/er:cross.1:BF16")");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, "0.0.0.0:1");
  EXPECT_EQ(options->repository, "models");
  EXPECT_EQ(options->metrics, "");
  EXPECT_EQ(options->threads, 3);
  EXPECT_EQ(options->queue_tokens, 77);
  EXPECT_EQ(options->max_message_bytes, 2 << 20);
  EXPECT_EQ(options->queue_bytes, 4096);
  EXPECT_FALSE(options->reflection);
  EXPECT_TRUE(options->demo);
  EXPECT_EQ(options->grace, absl::Seconds(90));
  EXPECT_EQ(options->kernel, KernelPath::kPrimitive);
  EXPECT_EQ(options->log_level, LogLevel::kDebug);
  ASSERT_EQ(options->loads.size(), 2u);
  EXPECT_EQ(options->loads[0].name, "a");
  EXPECT_EQ(options->loads[1].dtype, "bf16");
}

TEST_F(ConfigFile, AnEmptyOneSetsNothing) {
  const absl::StatusOr<ServerOptions> options = Options("# nothing\n");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, ServerOptions().listen);
  EXPECT_TRUE(Options("").ok());
}

TEST_F(ConfigFile, TheCommandLineWinsWhereverConfigStands) {
  const std::string path = dir_.Write(
      "server.textproto", "threads: 2 grace: \"9s\" demo: true load: \"a=x:0\" load: \"b=x:1\"");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--config", path, "--threads=5", "--nodemo", "--load=c=x:2"},
           {"--threads=5", "--nodemo", "--load=c=x:2", "--config", path},
           {"--threads=5", "--config", path, "--nodemo", "--load=c=x:2"}}) {
    const absl::StatusOr<ServerOptions> options = ParseFlags(arguments);
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->threads, 5);
    EXPECT_FALSE(options->demo);
    EXPECT_EQ(options->grace, absl::Seconds(9));
    std::vector<std::string> names;
    for (const StartupLayer& layer : options->loads) names.push_back(layer.name);
    EXPECT_THAT(names, ElementsAre("a", "b", "c"));
  }
}

TEST_F(ConfigFile, OfTwoTheLastCounts) {
  const std::string first = dir_.Write("first", "threads: 2 grace: \"9s\"");
  const std::string second = dir_.Write("second", "threads: 3");
  const absl::StatusOr<ServerOptions> options = ParseFlags({"--config", first, "--config", second});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->threads, 3);
  EXPECT_EQ(options->grace, ServerOptions().grace);
}

TEST_F(ConfigFile, AFaultOfTheTextHasItsPlace) {
  EXPECT_EQ(Refusal("demo: true\nlisen: \"x\""),
            "2:6: must be a flag other than config, help and version, with _ for -; was lisen");
  EXPECT_THAT(Refusal("max-tokens: 5"), HasSubstr("with _ for -; was max"));
  for (const std::string& name : NoFields()) {
    EXPECT_THAT(Refusal(absl::StrCat(name, ": \"x\"")), HasSubstr(absl::StrCat("was ", name)));
  }
  EXPECT_EQ(Refusal("threads: \"2\""), "1:10: Expected integer, got: \"2\"");
  EXPECT_THAT(Refusal("\n\ngrace: 30"), StartsWith("3:8: Expected string"));
  EXPECT_THAT(Refusal("max_message_bytes: 1024"), StartsWith("1:20: Expected string"));
  EXPECT_THAT(Refusal("demo: maybe"), HasSubstr("maybe"));
  EXPECT_THAT(Refusal("threads: 1\nthreads: 1"), MatchesRegex("2:.*\"threads\".*multiple times.*"));
  EXPECT_THAT(Refusal("threads: 99999999999999999999"), HasSubstr("99999999999999999999"));
  EXPECT_THAT(Refusal("listen: \"open"), StartsWith("1:"));
  EXPECT_THAT(Refusal("[google.protobuf.Any] { listen: \"x\" }"), StartsWith("1:"));
}

TEST_F(ConfigFile, AValueThatDoesntFitNamesItsFlagAndPlace) {
  EXPECT_EQ(Refusal("demo: true\n  threads: 0"),
            "2:3: --threads: must be an integer from 1 to 1024; was 0");
  EXPECT_THAT(Refusal("threads: -9223372036854775808"), HasSubstr("--threads: must be"));
  EXPECT_THAT(Refusal("queue_bytes: \"1KB\""), HasSubstr("--queue-bytes: must be"));
  EXPECT_THAT(Refusal("max_message_bytes: \"3GiB\""), HasSubstr("; was 3GiB"));
  EXPECT_THAT(Refusal("grace: \"30\""), HasSubstr("--grace: must be a duration"));
  EXPECT_THAT(Refusal("kernel: \"gpu\""), HasSubstr("--kernel: must be auto"));
  EXPECT_THAT(Refusal("log_level: \"loud\""), HasSubstr("--log-level: must be error"));
}

TEST_F(ConfigFile, OfSeveralLayersTheWrongOneIsPointedAt) {
  EXPECT_THAT(Refusal("load: \"a=x:0\"\nload: \"wrong\""),
              StartsWith("2:1: --load: must be NAME="));
  // A list in brackets has one place for all.
  EXPECT_THAT(Refusal("load: [\"a=x:0\", \"wrong\"]"), HasSubstr(" --load: must be NAME="));
  EXPECT_THAT(Refusal("load: []\nload: \"wrong\""), HasSubstr(" --load: must be NAME="));
}

TEST_F(ConfigFile, RefusalsArePrintable) {
  EXPECT_THAT(Refusal("kernel: \"a\\nb\\x1b[31m\\xff\""), HasSubstr("was a\\x0ab\\x1b[31m\\xff"));
  EXPECT_THAT(Refusal("repository: \"a\\0b\""),
              HasSubstr("--repository: must not hold a NUL; was a\\x00b"));
  EXPECT_THAT(Refusal(absl::StrCat(std::string(100000, 'x'), ": 1")), HasSubstr("xxx..."));
  Refusal(std::string("threads: 1\0", 11));
  Refusal("\x01\x02\xff");
}

TEST_F(ConfigFile, NestingIsRefusedWhateverItsDepth) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "a { ";
  EXPECT_THAT(Refusal(deep), StartsWith("1:"));
  EXPECT_THAT(Refusal("threads { threads { } }"), StartsWith("1:"));
}

TEST_F(ConfigFile, WhatCantBeReadIsNamed) {
  const auto refused = [](const std::string& path) {
    const absl::Status status = ParseFlags({"--config", path}).status();
    EXPECT_THAT(std::string(status.message()), StartsWith("--config: "));
    return status;
  };
  const absl::Status missing = refused(dir_.Path("missing"));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("missing: No such file"));
  const absl::Status folder = refused(dir_.path());
  EXPECT_THAT(std::string(folder.message()), HasSubstr("must be a regular file"));
  const absl::Status large = refused(dir_.Write("large", std::string(kMaxConfigBytes + 1, '\n')));
  EXPECT_THAT(std::string(large.message()), HasSubstr("at most 1048576 bytes; was 1048577"));
  EXPECT_TRUE(Options(std::string(kMaxConfigBytes, '\n')).ok());
  EXPECT_THAT(std::string(refused("").message()), HasSubstr("needs a value, FILE"));
  EXPECT_EQ(ParseFlags({"--config"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConfigFile, HelpListsIt) { EXPECT_THAT(FlagsHelp(), HasSubstr("--config FILE ")); }

// The example of docs/operations.md, which its first line names.
TEST_F(ConfigFile, TheOperatorsExampleIsOne) {
  const std::string page = ReadBytes(TestDataPath("../docs/operations.md"));
  const size_t begin = page.find("    # headwise.textproto");
  ASSERT_NE(begin, std::string::npos);
  const absl::StatusOr<ServerOptions> options =
      Options(absl::string_view(page).substr(begin, page.find("\n\n", begin) - begin));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->loads.size(), 2u);
}

}  // namespace
}  // namespace headwise
