// SPDX-License-Identifier: Apache-2.0
// Who may call what: rights of methods, tokens of a file.
#include "server/tokens.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "headwise/v1/headwise.pb.h"
#include "inference/inference.pb.h"
#include "server/rights.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kForwardToken[] = "forward-token-0001", kAdminToken[] = "admin-token-000002";

TEST(Rights, EveryMethodHasOne) {
  const std::map<std::string, Right> rights = {
      {"Forward", Right::kForward},      {"ForwardStream", Right::kForward},
      {"ListLayers", Right::kForward},   {"GetLayer", Right::kForward},
      {"ServerInfo", Right::kForward},   {"Ablate", Right::kAnalyze},
      {"AnalyzeHeads", Right::kAnalyze}, {"Audit", Right::kAnalyze},
      {"LoadLayer", Right::kAdmin},      {"UnloadLayer", Right::kAdmin},
      {"UploadLayer", Right::kAdmin},    {"PlanUpload", Right::kAdmin},
      {"DeriveLayer", Right::kAdmin},    {"SaveLayer", Right::kAdmin},
      {"DownloadLayer", Right::kAdmin},  {"ListRepository", Right::kAdmin}};
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("headwise.v1.Headwise");
  ASSERT_NE(service, nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string name = service->method(i)->name();
    ASSERT_TRUE(rights.contains(name)) << name << ": say here and in rights.cc who may call it";
    EXPECT_EQ(RightFor(absl::StrCat("/headwise.v1.Headwise/", name)), rights.at(name)) << name;
  }
}

TEST(Rights, OfTheOpenInferenceProtocolLoadingAndUnloadingAreTheAdministrators) {
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      "inference.GRPCInferenceService");
  ASSERT_NE(service, nullptr);
  std::set<std::string> admin;
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string name = service->method(i)->name();
    const Right right = RightFor(absl::StrCat("/inference.GRPCInferenceService/", name));
    if (right == Right::kAdmin) {
      admin.insert(name);
    } else {
      EXPECT_EQ(right, Right::kForward) << name;
    }
  }
  EXPECT_THAT(admin, ElementsAre("RepositoryModelLoad", "RepositoryModelUnload"));
}

TEST(Rights, ProbesNeedNoneAndWhatIsUnknownIsNotOpen) {
  EXPECT_EQ(RightFor("/grpc.health.v1.Health/Check"), Right::kNone);
  EXPECT_EQ(RightFor("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), Right::kForward);
  EXPECT_EQ(RightFor("/headwise.v1.Headwise/New"), Right::kAdmin);
  EXPECT_EQ(RightFor(""), Right::kForward);
}

TEST(TokensTest, FindsEachWithItsRight) {
  const auto tokens = Tokens::Parse(
      absl::StrCat("# callers\n\nforward ", kForwardToken, "\r\n  admin\t", kAdminToken, "  "));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Find(kForwardToken), Right::kForward);
  EXPECT_EQ(tokens->Find(kAdminToken), Right::kAdmin);
  EXPECT_EQ(tokens->Find("forward-token-0002"), Right::kNone);
  EXPECT_EQ(tokens->Find(std::string(kForwardToken).substr(1)), Right::kNone);
  EXPECT_EQ(tokens->Find(""), Right::kNone);
}

TEST(TokensTest, AFileThatIsNotRightIsRefusedWithoutItsText) {
  const std::string again = absl::StrCat("forward ", kForwardToken, "\n");
  for (const std::string& text :
       {std::string(), std::string("# nothing\n"), std::string("s3cr3t-token-without-right\n"),
        std::string("root s3cr3t-token-0000\n"), std::string("admin s3cr3t\n"),
        std::string("admin s3cr3t-token-0000 more\n"), std::string("admin s3cr3t-\x01-token-0000"),
        absl::StrCat("admin s3cr3t", std::string(5000, 'x')), absl::StrCat(again, again)}) {
    const absl::Status status = Tokens::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("s3cr3t")));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(kForwardToken)));
  }
}

TEST(TokensTest, TheHeaderIsBearerAndAToken) {
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bearer  abc "), "abc");
  EXPECT_EQ(BearerToken("Basic abc"), "");
  EXPECT_EQ(BearerToken("abc"), "");
  EXPECT_EQ(BearerToken(""), "");
}

}  // namespace
}  // namespace headwise
