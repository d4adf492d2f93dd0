// SPDX-License-Identifier: Apache-2.0
#include "core/format/file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(Printable("layer \"0\" \\ é 層 😀"), "layer \"0\" \\ é 層 😀");
  EXPECT_EQ(Printable(absl::string_view("a\0b\n\t\x7f", 6)), "a\\x00b\\x0a\\x09\\x7f");
  EXPECT_EQ(Printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");           // a second spelling of '/'
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, CutsLongText) {
  EXPECT_EQ(Printable(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(Printable(std::string(201, 'a')), std::string(200, 'a') + "...");
}

TEST(File, ReadAtPastTheEndSaysBothSizes) {
  const TempDir dir;
  const std::string path = dir.Write("f", "12345");
  const absl::StatusOr<UniqueFd> fd = OpenForRead(path);
  ASSERT_TRUE(fd.ok());
  char bytes[4];
  EXPECT_TRUE(ReadAt(*fd, path, 1, bytes, 4).ok());
  EXPECT_EQ(bytes[3], '5');
  const absl::Status status = ReadAt(*fd, path, 2, bytes, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at least 6 bytes; was 5"));
}

TEST(File, ReadAllHasALimit) {
  const TempDir dir;
  const std::string path = dir.Write("f", "12345");
  const absl::StatusOr<UniqueFd> fd = OpenForRead(path);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(*ReadAll(*fd, path, 5), "12345");
  EXPECT_EQ(ReadAll(*fd, path, 4).status().code(), absl::StatusCode::kDataLoss);
}

TEST(File, NamesWithANul) {
  EXPECT_EQ(OpenForRead(std::string("/tmp\0/x", 7)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headwise
