// SPDX-License-Identifier: Apache-2.0
#include "core/format/safetensors.h"

#include <sys/resource.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status ParseStatus(absl::string_view header, size_t payload_bytes) {
  const std::string bytes = SafetensorsBytes(header, std::string(payload_bytes, '\1'));
  return ParseSafetensorsHeader(bytes, bytes.size()).status();
}

void ExpectRefused(absl::string_view header, size_t payload_bytes, absl::string_view text) {
  const absl::Status status = ParseStatus(header, payload_bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << header << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text))) << header;
}

void ExpectAccepted(absl::string_view header, size_t payload_bytes) {
  const absl::Status status = ParseStatus(header, payload_bytes);
  EXPECT_TRUE(status.ok()) << header << status;
}

int64_t PeakRssKib() {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// A header length that doesn't fit the file costs neither memory nor an over-read.
TEST(Cases, L1_HeaderLengths) {
  const TempDir dir;
  const std::string sound = FloatSafetensors({{"a", {4}}});
  const struct {
    uint64_t length;
    const char* text;
  } kLengths[] = {
      {~uint64_t{0}, "was 18446744073709551615"},
      {~uint64_t{0} - 3, "was 18446744073709551612"},
      {uint64_t{1} << 40, "must be at most 104857600 bytes; was 1099511627776"},
      {kMaxSafetensorsHeaderBytes, "must have at least 104857608 bytes"},
      {sound.size() - 7, "must have at least"},
      {0, "must begin with {"},
  };
  for (const auto& [length, text] : kLengths) {
    const std::string path =
        dir.Write("bad.safetensors", LittleEndian(length, 8) + sound.substr(8));
    const int64_t before = PeakRssKib();
    const absl::Status status = SafetensorsFile::Open(path).status();
    EXPECT_LE(PeakRssKib() - before, 1024) << length;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << length;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(std::string(status.message()), HasSubstr("bad.safetensors"));
  }
}

TEST(Cases, L1_FileOf7Bytes) {
  const TempDir dir;
  const absl::Status status =
      SafetensorsFile::Open(dir.Write("short.safetensors", "1234567")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("must have at least 8 bytes; was 7"));
}

// a F32 [4] and b F32 [2] with other ranges than they should have.
std::string TwoTensors(absl::string_view a_range, absl::string_view b_range,
                       absl::string_view a_shape = "4") {
  return absl::StrCat(R"({"a":{"dtype":"F32","shape":[)", a_shape, R"(],"data_offsets":[)", a_range,
                      R"(]},"b":{"dtype":"F32","shape":[2],"data_offsets":[)", b_range, "]}}");
}

TEST(Cases, L2_Offsets) {
  ExpectRefused(TwoTensors("0,16", "8,16"), 24, "tensor \"b\"");
  ExpectRefused(TwoTensors("0,16", "20,28"), 28, "tensor \"b\": data_offsets: must begin at 16");
  ExpectRefused(TwoTensors("16,0", "0,8"), 24, "tensor \"a\"");
  ExpectRefused(TwoTensors("-8,8", "8,16"), 24, "tensor \"a\"");
  ExpectRefused(TwoTensors("0,16", "16,24", "5"), 24, "tensor \"a\"");
  ExpectRefused(TwoTensors("0,16", "16,24"), 25, "must have");
  ExpectRefused(TwoTensors("0,16", "16,24"), 25, "last tensor \"b\"");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                8, "tensor \"b\"");
}

TEST(Cases, L2_AcceptedLayouts) {
  ExpectAccepted(TwoTensors("0,16", "16,24"), 24);
  ExpectAccepted(TwoTensors("8,24", "0,8"), 24);  // keys out of order, ranges correct
  ExpectAccepted(R"({"e":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},)"
                 R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                 R"("f":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]}})",
                 8);
}

TEST(Cases, L2_SumsAre64BitAndChecked) {
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                "a");
  ExpectRefused(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
                "a");
  ExpectRefused(R"({"a":{"dtype":"X1","shape":[1],"data_offsets":[0,18446744073709551615]}})", 0,
                "beyond 2^64");
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0,
                "below 2^63");
}

TEST(Cases, L3_DuplicateNames) {
  ExpectRefused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                8, "tensor \"w\": is there twice");
  ExpectRefused(R"({"__metadata__":{"a":"1","a":"2"}})", 0, "\"a\" twice");
  ExpectRefused(R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
                "\"dtype\" twice");
  ExpectRefused(R"({"w":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", 4,
                "\"shape\" twice");
}

TEST(Cases, L4_CutFiles) {
  const TempDir dir;
  const std::string sound = FloatSafetensors({{"a", {4}}, {"b", {64}}});
  for (const size_t bytes : {sound.size() - 1, sound.size() / 2, size_t{20}}) {
    const absl::Status status =
        SafetensorsFile::Open(dir.Write("cut.safetensors", sound.substr(0, bytes))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("was ", bytes)));
  }
  const absl::Status status =
      SafetensorsFile::Open(dir.Write("cut.safetensors", sound.substr(0, sound.size() - 1)))
          .status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("must have ", sound.size())));
}

TEST(Cases, L4_FileCutAfterItWasOpened) {
  const TempDir dir;
  const std::string sound = FloatSafetensors({{"a", {4}}, {"b", {64}}});
  const std::string path = dir.Write("later.safetensors", sound);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, sound.size() - 1);
  EXPECT_TRUE((*file)->Read("a").ok());
  const absl::Status status = (*file)->Read("b").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("was ", sound.size() - 1)));
}

// The same for a stretch of a tensor, as layers are read.
TEST(Cases, L4_PartsOfAFileCutAfterItWasOpened) {
  const TempDir dir;
  const std::string sound = FloatSafetensors({{"a", {4}}, {"b", {64}}});
  const std::string path = dir.Write("later.safetensors", sound);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::string bytes(16, '\0');
  const absl::Span<char> out = absl::MakeSpan(bytes.data(), bytes.size());
  EXPECT_TRUE((*file)->ReadPart("b", 240, out).ok());
  EXPECT_EQ(bytes, sound.substr(sound.size() - 16));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->ReadPart("b", 241, out)));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->ReadPart("b", -1, out)));
  EXPECT_TRUE(absl::IsNotFound((*file)->ReadPart("c", 0, out)));
  std::filesystem::resize_file(path, sound.size() - 1);
  EXPECT_TRUE((*file)->ReadPart("b", 224, out).ok());
  EXPECT_TRUE(absl::IsDataLoss((*file)->ReadPart("b", 240, out)));
}

TEST(Safetensors, MalformedHeaders) {
  for (const char* header : {"{",
                             "[]",
                             "{]",
                             "{\"a\":1}",
                             "{\"a\":[]}",
                             "{\"a\":\"x\"}",
                             "{\"a\":null}",
                             "{\"a\":{}}",
                             R"({"a":{"dtype":"F32"}})",
                             R"({"a":{"dtype":1}})",
                             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
                             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})",
                             R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
                             R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})",
                             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})",
                             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":{}}})",
                             R"({"a":{"dtype":"F32","shape":{},"data_offsets":[0,4]}})",
                             R"({"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})",
                             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}})",
                             R"({"__metadata__":{"a":1}})",
                             R"({"__metadata__":{"a":{}}})",
                             R"({"__metadata__":[]})",
                             "{} x",
                             "{}{}",
                             "{\"\xff\":{}}"}) {
    ExpectRefused(header, 4, "");
  }
  const std::string deep = "{\"a\":" + std::string(100000, '[');
  ExpectRefused(deep, 4, "tensor \"a\"");
}

TEST(Safetensors, MessagesStayOnOneShortLine) {
  const absl::Status status =
      ParseStatus(absl::StrCat("{\"a\\nb", std::string(10000, 'c'),
                               "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}"),
                  8);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a\\x0abccc"));
  EXPECT_LT(status.message().size(), 500u);
}

TEST(Safetensors, UnknownDtypesFailOnlyTheirOwnRead) {
  const TempDir dir;
  const std::string path =
      dir.Write("f8.safetensors",
                SafetensorsBytes(R"({"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                                 R"("r":{"dtype":"NEW","shape":[7],"data_offsets":[2,3]},)"
                                 R"("s":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                                 "abcd"));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->Read("s")->data, ElementsAre('d'));
  const absl::Status status = (*file)->Read("q").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor \"q\": dtype F8_E4M3"));
  EXPECT_EQ((*file)->Read("none").status().code(), absl::StatusCode::kNotFound);
  // Known to the format, so its size is checked all the same.
  ExpectRefused(R"({"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,3]}})", 3, "q");
  ExpectAccepted(R"({"q":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2);
  ExpectRefused(R"({"q":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "q");
}

TEST(Safetensors, NotARegularFile) {
  const TempDir dir;
  EXPECT_EQ(SafetensorsFile::Open(dir.path()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::Open(dir.Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open("/dev/zero").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Safetensors, StoredFiles) {
  for (const char* name : {"data/minilm/model.safetensors", "data/smollm2/model.safetensors",
                           "data/minilm/expected.safetensors", "golden/bert/model.safetensors",
                           "golden/mistral_window/expected.safetensors"}) {
    const auto file = SafetensorsFile::Open(TestDataPath(name));
    ASSERT_TRUE(file.ok()) << file.status();
    for (const SafetensorsEntry& entry : (*file)->header().entries) {
      EXPECT_TRUE((*file)->Read(entry.name).ok()) << entry.name;
    }
  }
}

TEST(Safetensors, WrittenFilesReadBack) {
  const TempDir dir;
  const OwnedTensor y = FloatTensor({2, 2}, {1.0f, 2.0f, 3.0f, 4.0f});
  const OwnedTensor empty = FloatTensor({0, 3}, {});
  const uint8_t mask[] = {1, 0, 1};
  const std::string path = dir.Path("out.safetensors");
  const absl::Status status = WriteSafetensors(
      path, {{"y", y.view()}, {"mask", {DType::kBool, {3}, mask}}, {"empty", empty.view()}},
      {{"format", "pt"}, {"note", "a \"quoted\" line\n"}});
  ASSERT_TRUE(status.ok()) << status;
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header().data_begin % 8, 0u);
  EXPECT_EQ((*file)->header().metadata.at("note"), "a \"quoted\" line\n");
  EXPECT_EQ((*file)->header().entries[0].name, "y");
  EXPECT_THAT(Elements<float>(*(*file)->Read("y")), ElementsAre(1.0f, 2.0f, 3.0f, 4.0f));
  EXPECT_THAT((*file)->Read("mask")->data, ElementsAre(1, 0, 1));
  EXPECT_THAT((*file)->Read("empty")->shape, ElementsAre(0, 3));
}

size_t FilesIn(const TempDir& dir) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) count += entry.exists();
  return count;
}

TEST(Safetensors, WritingReplacesAndLeavesNothingBehind) {
  const TempDir dir;
  const OwnedTensor one = FloatTensor({1}, {1.0f});
  const OwnedTensor two = FloatTensor({1}, {2.0f});
  dir.Link("out.safetensors", "link.safetensors");
  const std::string link = dir.Path("link.safetensors");
  ASSERT_TRUE(WriteSafetensors(dir.Path("out.safetensors"), {{"x", one.view()}}).ok());
  ASSERT_TRUE(WriteSafetensors(link, {{"x", two.view()}}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_THAT(Elements<float>(*(*SafetensorsFile::Open(dir.Path("out.safetensors")))->Read("x")),
              ElementsAre(2.0f));
  EXPECT_EQ(FilesIn(dir), 2u);
  EXPECT_TRUE(WriteSafetensors("/dev/null", {{"x", one.view()}}).ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(Safetensors, WritingRefusals) {
  const TempDir dir;
  const OwnedTensor one = FloatTensor({1}, {1.0f});
  const auto code = [&](const std::string& path, const std::vector<std::string>& names) {
    std::vector<std::pair<std::string, TensorView>> tensors;
    for (const std::string& name : names) tensors.emplace_back(name, one.view());
    return WriteSafetensors(path, tensors).code();
  };
  EXPECT_EQ(code(dir.Path("a"), {"x", "x"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dir.Path("a"), {"__metadata__"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dir.path(), {"x"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(dir.Path("none/a"), {"x"}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code("/dev/full", {"x"}), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(FilesIn(dir), 0u);
}

}  // namespace
}  // namespace headwise
