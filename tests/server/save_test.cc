// SPDX-License-Identifier: Apache-2.0
// SaveLayer and DownloadLayer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/crc/crc32c.h"
#include "core/format/safetensors.h"
#include "tests/server/server_fixture.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

class SaveRpc : public ServerFixture {
 protected:
  grpc::Status Save(const std::string& name, const std::string& file) {
    v1::SaveLayerRequest request;
    request.set_name(name);
    request.set_file(file);
    grpc::ClientContext context;
    return stub_->SaveLayer(&context, request, &saved_);
  }

  Streamed<v1::DownloadLayerResponse> Download(const std::string& name) {
    v1::DownloadLayerRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    return ReadAll(stub_->DownloadLayer(&context, request).get());
  }

  ServerOptions WithSaveDir() const {
    ServerOptions options = TestOptions();
    options.save_dir = dir_.path();
    return options;
  }

  TempDir dir_;
  v1::SaveLayerResponse saved_;
};

TEST_F(SaveRpc, BothGiveTheSameFile) {
  StartReady(WithSaveDir());
  LoadMinilm("m3");
  const auto download = Download("m3");
  ASSERT_TRUE(download.status.ok()) << download.status.error_message();
  std::string bytes;
  for (const v1::DownloadLayerResponse& part : download.messages) {
    EXPECT_EQ(part.offset(), static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(part.crc32c(), static_cast<uint32_t>(absl::ComputeCrc32c(part.data())));
    EXPECT_LE(part.data().size(), size_t{1} << 20);
    bytes += part.data();
    EXPECT_EQ(part.total_bytes(), download.messages[0].total_bytes());
  }
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), download.messages[0].total_bytes());

  ASSERT_TRUE(Save("m3", "m3.safetensors").ok());
  EXPECT_EQ(saved_.bytes(), static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(ReadBytes(dir_.Path("m3.safetensors")), bytes);
}

TEST_F(SaveRpc, TheFileIsPlainSafetensorsInTheStoredDtype) {
  StartReady(WithSaveDir());
  LoadMinilm("m3");
  ASSERT_TRUE(Save("m3", "m3.safetensors").ok());
  const auto file = SafetensorsFile::Open(dir_.Path("m3.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsHeader& header = (*file)->header();
  EXPECT_EQ(header.metadata.at("headwise.format"), "1");
  EXPECT_THAT(header.metadata.at("headwise.spec"),
              HasSubstr(R"("q":"encoder.layer.3.attention.self.query.weight")"));
  EXPECT_THAT(header.metadata.at("headwise.origin"), HasSubstr(R"("family":"bert")"));
  ASSERT_EQ(header.entries.size(), 8u);
  EXPECT_EQ(header.entries[0].name, "encoder.layer.3.attention.self.query.weight");
  EXPECT_EQ(header.entries[0].dtype, "F16");
}

TEST_F(SaveRpc, Refusals) {
  StartReady(WithSaveDir());
  LoadMinilm("m3");
  for (const char* file : {"", ".hidden", "../m3", "/tmp/m3", "a/b", "a b"}) {
    EXPECT_EQ(Save("m3", file).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << file;
  }
  EXPECT_EQ(Save("absent", "a").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Download("absent").status.error_code(), grpc::StatusCode::NOT_FOUND);
  std::filesystem::create_symlink("elsewhere", dir_.Path("link"));
  EXPECT_EQ(Save("m3", "link").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(std::filesystem::exists(dir_.Path("elsewhere")));
}

TEST_F(SaveRpc, IsOffWithoutAFolder) {
  StartReady();
  LoadMinilm("m3");
  const grpc::Status status = Save("m3", "m3.safetensors");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--save-dir"));
}

TEST_F(SaveRpc, AChangedCheckpointIsNotSavedAsTheLayer) {
  const TempDir repository;
  std::filesystem::create_directory(repository.Path("m"));
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(TestOptions().repository + "/minilm/" + file,
                               repository.Path(std::string("m/") + file));
  }
  ServerOptions options = WithSaveDir();
  options.repository = repository.path();
  StartReady(options);
  v1::LoadLayerRequest request;
  request.set_name("m3");
  request.set_checkpoint("m");
  request.set_layer("3");
  v1::LoadLayerResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->LoadLayer(&context, request, &response).ok());
  std::string bytes = ReadBytes(repository.Path("m/model.safetensors"));
  const size_t data = bytes.size() / 2;
  for (size_t i = data; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  repository.Write("m/model.safetensors", bytes);
  EXPECT_EQ(Save("m3", "m3.safetensors").error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_FALSE(std::filesystem::exists(dir_.Path("m3.safetensors")));
  EXPECT_EQ(Download("m3").status.error_code(), grpc::StatusCode::DATA_LOSS);
}

}  // namespace
}  // namespace headwise
