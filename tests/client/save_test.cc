// SPDX-License-Identifier: Apache-2.0
// save, and load --layer-file.
#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"
#include "client/download.h"
#include "core/format/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_client.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::DownloadLayerResponse Part(int64_t total, int64_t offset, const std::string& data) {
  v1::DownloadLayerResponse part;
  part.set_total_bytes(total);
  part.set_offset(offset);
  part.set_data(data);
  part.set_crc32c(static_cast<uint32_t>(absl::ComputeCrc32c(data)));
  return part;
}

TEST(SaveVerbTest, WritesWhatComes) {
  const TempDir dir;
  Script script;
  script.download = {Part(5, 0, "abc"), Part(5, 3, "de")};
  const std::string path = dir.Path("m.safetensors");
  const Outcome outcome = RunWith(&script, {"save", "m0", "--output", path, "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(script.downloaded, "m0");
  EXPECT_EQ(outcome.out, "{\"bytes\":\"5\"}\n");
  EXPECT_EQ(ReadBytes(path), "abcde");
}

TEST(SaveVerbTest, ABrokenDownloadLeavesTheOldFile) {
  const TempDir dir;
  const std::string path = dir.Write("m.safetensors", "old");
  v1::DownloadLayerResponse flipped = Part(5, 0, "abcde");
  flipped.set_crc32c(1);
  for (const std::vector<v1::DownloadLayerResponse>& parts : {std::vector{Part(5, 0, "abc")},
                                                              {Part(5, 0, "abc"), Part(5, 4, "e")},
                                                              {Part(5, 0, "abcdef")},
                                                              {Part(5, 0, "abc"), Part(6, 3, "de")},
                                                              {flipped},
                                                              {}}) {
    Script script;
    script.download = parts;
    const Outcome outcome = RunWith(&script, {"save", "m0", "--output", path});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, StartsWith("headwise: DATA_LOSS: download: "));
    EXPECT_EQ(ReadBytes(path), "old");
  }
  Script script;
  script.failure = absl::NotFoundError("name: must be loaded; was m0");
  EXPECT_THAT(RunWith(&script, {"save", "m0", "--output", path}).err,
              StartsWith("headwise: NOT_FOUND: "));
  EXPECT_EQ(ReadBytes(path), "old");
}

TEST(SaveVerbTest, OnTheServersSide) {
  Script script;
  script.save.set_bytes(7);
  const Outcome outcome = RunWith(&script, {"save", "m0", "--server-side", "m.safetensors"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(script.save_request.name(), "m0");
  EXPECT_EQ(script.save_request.file(), "m.safetensors");
  EXPECT_THAT(outcome.out, HasSubstr("saved m0 in m.safetensors"));
  EXPECT_EQ(RunWith(&script, {"save", "m0"}).exit_code, 2);
  EXPECT_EQ(RunWith(&script, {"save", "m0", "--output", "a", "--server-side", "b"}).exit_code, 2);
}

// A file of one tensor "w" with this metadata.
std::string SavedLayer(const TempDir& dir, const std::map<std::string, std::string>& metadata) {
  const std::string path = dir.Path("layer.safetensors");
  const OwnedTensor w = FloatTensor({2}, std::vector<float>{1, 2});
  EXPECT_TRUE(WriteSafetensors(path, {{"w", w.view()}}, metadata).ok());
  return path;
}

TEST(LoadVerbTest, ReadsASavedLayer) {
  const TempDir dir;
  Script script;
  const std::string path = SavedLayer(
      dir, {{"headwise.format", "1"},
            {"headwise.spec", R"({"d_model":2,"heads":1,"tensors":{"o_bias":"w"}})"},
            {"headwise.origin", R"({"source":{"family":"bert"},"later":1,"x_enters":"x"})"}});
  const Outcome outcome = RunWith(&script, {"load", "m0", "--layer-file", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(script.upload_header.spec().d_model(), 2u);
  EXPECT_EQ(script.upload_header.origin().source().family(), "bert");
  EXPECT_EQ(script.upload_header.origin().x_enters(), "x");
  EXPECT_EQ(script.uploaded.size(), 1u);
}

TEST(LoadVerbTest, FilesThatAreNoSavedLayer) {
  const TempDir dir;
  const std::string spec = R"({"tensors":{"o_bias":"w"}})";
  using Metadata = std::map<std::string, std::string>;
  for (const auto& [metadata, code] : std::initializer_list<std::pair<Metadata, const char*>>{
           {{}, "DATA_LOSS"},
           {{{"headwise.format", "2"}}, "UNIMPLEMENTED"},
           {{{"headwise.format", "1"}}, "DATA_LOSS"},
           {{{"headwise.format", "1"}, {"headwise.spec", "{"}}, "DATA_LOSS"},
           {{{"headwise.format", "1"}, {"headwise.spec", R"({"odd":1})"}}, "DATA_LOSS"},
           {{{"headwise.format", "1"}, {"headwise.spec", spec}, {"headwise.origin", "["}},
            "DATA_LOSS"},
           {{{"headwise.format", "1"},
             {"headwise.spec", R"({"tensors":{"q":"absent"}})"},
             {"headwise.origin", "{}"}},
            "DATA_LOSS"}}) {
    Script script;
    const Outcome outcome =
        RunWith(&script, {"load", "m0", "--layer-file", SavedLayer(dir, metadata)});
    EXPECT_THAT(outcome.err, StartsWith(absl::StrCat("headwise: ", code, ": ")));
    EXPECT_EQ(script.calls, 0);
  }
  Script script;
  const std::string text = dir.Write("text.safetensors", "no tensors here");
  EXPECT_THAT(RunWith(&script, {"load", "m0", "--layer-file", text}).err,
              StartsWith("headwise: DATA_LOSS: "));
}

}  // namespace
}  // namespace headwise::client
