// SPDX-License-Identifier: Apache-2.0
#include "server/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/certificate_authority.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CertificatesTest, AKeyMustBelongToItsCertificate) {
  const CertificateAuthority authority;
  const IssuedCertificate one = authority.Issue(1), two = authority.Issue(2);
  EXPECT_TRUE(CheckCertificates({one.key, one.chain, ""}).ok());
  EXPECT_TRUE(
      CheckCertificates({one.key, one.chain + authority.certificate(), authority.certificate()})
          .ok());
  const std::string half = one.chain.substr(0, one.chain.size() / 2);
  const Certificates wrong[] = {
      {two.key, one.chain, ""},
      {one.key, two.chain, ""},
      {one.key.substr(0, one.key.size() / 2), one.chain, ""},
      {one.key, half, ""},
      {one.key, one.chain + half, ""},
      {one.key, authority.certificate() + one.chain, ""},
      {"", one.chain, ""},
      {one.key, "", ""},
      {one.key, one.chain, "no certificate"},
  };
  for (const Certificates& certificates : wrong) {
    const absl::Status status = CheckCertificates(certificates);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("tls-"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("MI")));  // base64 of what is there
  }
}

TEST(CertificateFolderTest, ShowsTheLatestWholeSetAndLeavesNothing) {
  std::string folder;
  {
    auto made = CertificateFolder::Create();
    ASSERT_TRUE(made.ok()) << made.status();
    for (const char* text : {"first", "second", "third", "fourth"}) {
      ASSERT_TRUE((*made)->Publish({text, text, text}).ok());
      EXPECT_EQ(ReadBytes((*made)->key_path()), text);
      EXPECT_EQ(ReadBytes((*made)->chain_path()), text);
      EXPECT_EQ(ReadBytes((*made)->client_ca_path()), text);
    }
    folder = std::filesystem::path((*made)->key_path()).parent_path().parent_path();
    const auto mode = std::filesystem::status(folder).permissions();
    EXPECT_EQ(mode, std::filesystem::perms::owner_all);
    // Links into this process's memory: nothing that another could read after its end.
    EXPECT_THAT(std::filesystem::read_symlink((*made)->key_path()).string(),
                HasSubstr("/proc/self/fd/"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(CertificateFolderTest, TimesTellGenerationsApart) {
  auto made = CertificateFolder::Create();
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE((*made)->Publish({"a", "a", ""}).ok());
  const auto first = std::filesystem::last_write_time((*made)->key_path());
  ASSERT_TRUE((*made)->Publish({"b", "b", ""}).ok());
  const auto second = std::filesystem::last_write_time((*made)->key_path());
  EXPECT_GE(second - first, std::chrono::seconds(1));
}

}  // namespace
}  // namespace headwise
