// SPDX-License-Identifier: Apache-2.0
#include "client/upload.h"

#include <string>
#include <vector>

#include "absl/crc/crc32c.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_client.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const TensorSource& source) {
  std::vector<std::string> names;
  for (const v1::StoredTensor& tensor : source.tensors()) names.push_back(tensor.name());
  return names;
}

TEST(CheckpointFolderTest, ReadsASingleFile) {
  const TempDir dir;
  dir.Write("config.json", "{}");
  dir.Write("model.safetensors", FloatSafetensors({{"b", {2}}, {"a", {2, 3}}}));
  dir.Write("inputs.safetensors", "not a checkpoint's file");
  const auto folder = CheckpointFolder::Open(dir.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(Names(**folder), ElementsAre("a", "b"));
  EXPECT_THAT((*folder)->tensors()[0].shape(), ElementsAre(2, 3));
  EXPECT_EQ((*folder)->tensors()[0].dtype(), "F32");
  EXPECT_EQ((*folder)->config_json(), "{}");
  EXPECT_EQ((*folder)->Read("b")->data.size(), 8u);
  EXPECT_EQ((*folder)->Read("c").status().code(), absl::StatusCode::kNotFound);
}

TEST(CheckpointFolderTest, LetsTheIndexAloneNameFiles) {
  const TempDir dir;
  dir.Write("config.json", "{}");
  dir.Write("model.safetensors", "would be refused");
  dir.Write("one.safetensors", FloatSafetensors({{"a", {1}}, {"stray", {1}}}));
  dir.Write("two.safetensors", FloatSafetensors({{"b", {1}}, {"a", {9}}}));
  dir.Write("model.safetensors.index.json",
            R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto folder = CheckpointFolder::Open(dir.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(Names(**folder), ElementsAre("a", "b"));
  EXPECT_EQ((*folder)->Read("a")->data.size(), 4u);
}

TEST(CheckpointFolderTest, CallsABadIndexDataLoss) {
  const TempDir dir;
  dir.Write("config.json", "{}");
  dir.Write("one.safetensors", FloatSafetensors({{"a", {1}}}));
  for (const char* index :
       {"[", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"../one.safetensors"}})", R"({"weight_map":{"a":"/etc/passwd"}})",
        R"({"weight_map":{"a":""}})", R"({"weight_map":{"b":"one.safetensors"}})",
        R"({"weight_map":{"a":"absent.safetensors"}})"}) {
    dir.Write("model.safetensors.index.json", index);
    EXPECT_EQ(CheckpointFolder::Open(dir.path()).status().code(), absl::StatusCode::kDataLoss)
        << index;
  }
}

TEST(CheckpointFolderTest, NamesWhatIsMissing) {
  const TempDir dir;
  EXPECT_EQ(CheckpointFolder::Open(dir.path()).status().code(), absl::StatusCode::kNotFound);
  dir.Write("config.json", "{}");
  const absl::Status status = CheckpointFolder::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
}

TEST(SendChunksTest, CutsAtFourMebibytesEachWithItsCrc) {
  const std::string data(2 * kUploadChunkBytes + 5, 'x');
  std::vector<int64_t> offsets;
  std::string joined;
  EXPECT_TRUE(SendChunks(3, data, [&](const v1::UploadLayerRequest& request) {
    const v1::UploadChunk& chunk = request.chunk();
    EXPECT_EQ(chunk.tensor(), 3u);
    EXPECT_LE(chunk.data().size(), kUploadChunkBytes);
    EXPECT_EQ(chunk.crc32c(), static_cast<uint32_t>(absl::ComputeCrc32c(chunk.data())));
    offsets.push_back(chunk.offset());
    joined += chunk.data();
    return true;
  }));
  EXPECT_THAT(offsets, ElementsAre(0, 4 << 20, 8 << 20));
  EXPECT_EQ(joined, data);
}

TEST(SendChunksTest, StopsWhenTheServerHasHadEnough) {
  int sent = 0;
  EXPECT_FALSE(SendChunks(0, std::string(3 * kUploadChunkBytes, 'x'),
                          [&](const v1::UploadLayerRequest&) { return ++sent < 2; }));
  EXPECT_EQ(sent, 2);
  EXPECT_TRUE(SendChunks(0, "", [](const v1::UploadLayerRequest&) { return false; }));
}

TEST(SpecTensorNamesTest, AreAllThatTheSpecNames) {
  const auto spec = ParseSpec(
      R"({"tensors":{"q":"a","kv":"b","o":"c","kv_bias":"d","q_norm":"e","k_norm_bias":"f",)"
      R"("sinks":"g","position_bias":"h","k_norm_heads":["i","j"],)"
      R"("pre_norm":"k","pre_norm_bias":"l","q_statistic":"m","k_statistic":"n",)"
      R"("q_statistic_bias":"o","k_statistic_bias":"p"}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(
      SpecTensorNames(spec->tensors()),
      ElementsAre("a", "c", "e", "f", "g", "h", "b", "d", "i", "j", "k", "l", "m", "n", "o", "p"));
}

TEST(UploadVerbTest, SendsOnlyThePlannedTensors) {
  const TempDir dir;
  dir.Write("config.json", "{\"model_type\":\"bert\"}");
  dir.Write("model.safetensors", FloatSafetensors({{"q", {2, 2}}, {"other", {9}}, {"k", {2}}}));
  Script script;
  script.plan.add_tensors("k");
  script.plan.add_tensors("q");
  script.plan.add_tensors("k");
  const Outcome outcome =
      RunWith(&script, {"load", "m0", "--upload", dir.path(), "--layer", "0", "--dtype", "int8"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(script.plan_request.tensors_size(), 3);
  EXPECT_EQ(script.plan_request.layer(), "0");
  const v1::UploadHeader& header = script.upload_header;
  EXPECT_EQ(header.name(), "m0");
  EXPECT_EQ(header.dtype(), v1::INT8);
  EXPECT_EQ(header.checkpoint().config_json(), "{\"model_type\":\"bert\"}");
  ASSERT_EQ(header.tensors_size(), 2);
  EXPECT_EQ(header.tensors(0).name(), "k");
  EXPECT_EQ(header.tensors(1).name(), "q");
  EXPECT_EQ(header.total_bytes(), 4 * (2 + 4));
  EXPECT_EQ(script.uploaded.size(), 2u);
}

TEST(UploadVerbTest, SendsOnesOwnLayer) {
  const TempDir dir;
  const std::string spec = dir.Write("s.json", R"({"d_model":2,"heads":1,"orientation":"OUT_IN",
                    "tensors":{"q":"wq","k":"wk","v":"wq","o":"wo","o_bias":"bo"}})");
  const std::string weights =
      dir.Write("w.safetensors",
                FloatSafetensors({{"bo", {2}}, {"wk", {2, 2}}, {"wo", {2, 2}}, {"wq", {2, 2}}}));
  Script script;
  const Outcome outcome =
      RunWith(&script, {"load", "m0", "--spec", spec, "--weights", weights, "--replace"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(script.upload_header.replace());
  EXPECT_EQ(script.upload_header.spec().orientation(), v1::OUT_IN);
  EXPECT_EQ(script.upload_header.tensors_size(), 4);  // wq once, though it serves twice
  EXPECT_EQ(script.upload_header.tensors(0).name(), "wq");
}

TEST(UploadVerbTest, RefusesUnknownKeysAndAbsentTensors) {
  const TempDir dir;
  const std::string weights = dir.Write("w.safetensors", FloatSafetensors({{"wq", {2, 2}}}));
  Script script;
  const Outcome unknown = RunWith(
      &script,
      {"load", "m0", "--spec", dir.Write("s.json", R"({"d_modell":2})"), "--weights", weights});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("headwise: INVALID_ARGUMENT: spec: must be JSON"));
  EXPECT_THAT(unknown.err, HasSubstr("d_modell"));
  const Outcome absent =
      RunWith(&script, {"load", "m0", "--spec", dir.Write("t.json", R"({"tensors":{"q":"nope"}})"),
                        "--weights", weights});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("headwise: NOT_FOUND: tensors: must be in the weights"));
}

}  // namespace
}  // namespace headwise::client
