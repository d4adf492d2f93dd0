// SPDX-License-Identifier: Apache-2.0
// Every golden checkpoint, in both styles of config.json, loaded and run over gRPC.
#include "tests/support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/stored_layer.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr double kF32Error = 1e-5;  // of the largest |y|
constexpr double kF32PError = 5e-6;
constexpr double kBf16Error = 1e-2;  // of the largest |y|, and of y's length

// The folder of a case and style in the server's repository.
std::string FolderOf(const GoldenLayer& layer) {
  return layer.config_file == "config.json" ? layer.folder : layer.folder + ".old";
}

void AddFolder(const GoldenLayer& layer, const std::string& repository) {
  const std::filesystem::path from = TestDataPath("golden/" + layer.folder);
  const std::filesystem::path to = std::filesystem::path(repository) / FolderOf(layer);
  if (!std::filesystem::create_directory(to)) return;  // another layer's turn made it
  std::filesystem::copy_file(from / layer.config_file, to / "config.json");
  std::filesystem::copy_file(from / "model.safetensors", to / "model.safetensors");
}

// One server for all cases.
class GoldenOverRpc : public ::testing::TestWithParam<GoldenLayer> {
 protected:
  static void SetUpTestSuite() {
    repository_ = new TempDir;
    for (const GoldenLayer& layer : GoldenLayers()) AddFolder(layer, repository_->path());
    server_ = new ServerProcess({"--repository", repository_->path()});
  }
  static void TearDownTestSuite() {
    delete server_;
    delete repository_;
  }

  void SetUp() override { client_ = ConnectTo(*server_); }

  void Load(v1::DType dtype) {
    v1::LoadLayerRequest request;
    request.set_name(GoldenName(GetParam()));
    request.set_checkpoint(FolderOf(GetParam()));
    request.set_layer(GetParam().id);
    request.set_dtype(dtype);
    request.set_replace(true);
    const auto loaded = client_->LoadLayer(request);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
  }

  v1::ForwardResponse Forward(const GoldenTensors& golden) {
    v1::ForwardRequest request =
        MakeForwardRequest(GoldenName(GetParam()), golden.x, golden.lengths, {v1::Y, v1::P});
    v1::AttentionInput* input = request.mutable_input();
    if (!golden.memory.empty()) {
      const auto width = GetParam().described.at("spec").at("D_memory").get<uint32_t>();
      v1::Tensor* memory = input->mutable_memory();
      memory->set_dtype(v1::F32);
      memory->add_shape(static_cast<uint32_t>(golden.memory.size()) / width);
      memory->add_shape(width);
      memory->set_data(golden.memory.data(), golden.memory.size() * sizeof(float));
      for (const int64_t length : golden.memory_lengths) {
        input->add_memory_lengths(static_cast<uint32_t>(length));
      }
    }
    if (!golden.positions.empty()) {
      v1::Tensor* positions = input->mutable_positions();
      positions->set_dtype(v1::I64);
      positions->add_shape(static_cast<uint32_t>(golden.positions.size()));
      positions->set_data(golden.positions.data(), golden.positions.size() * sizeof(int64_t));
    }
    auto response = client_->Forward(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *std::move(response) : v1::ForwardResponse();
  }

  static TempDir* repository_;
  static ServerProcess* server_;
  std::unique_ptr<client::Client> client_;
};

TempDir* GoldenOverRpc::repository_ = nullptr;
ServerProcess* GoldenOverRpc::server_ = nullptr;

double RelativeL2(const std::vector<float>& actual, const std::vector<double>& expected) {
  double error = 0.0, length = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    length += std::pow(expected[i], 2);
  }
  return std::sqrt(error / length);
}

TEST_P(GoldenOverRpc, F32) {
  const GoldenTensors golden = ReadGolden(GetParam());
  Load(v1::F32);
  const v1::ForwardResponse response = Forward(golden);
  EXPECT_TRUE(
      AllNear(TensorFloats(response, "y"), golden.y, kF32Error * LargestMagnitude(golden.y)));
  for (size_t b = 0; b < golden.p.size(); ++b) {
    const std::string p = absl::StrCat("p.", b);
    EXPECT_TRUE(AllNear(TensorFloats(response, p), golden.p[b], kF32PError)) << p;
  }
}

TEST_P(GoldenOverRpc, Bf16) {
  const GoldenTensors golden = ReadGolden(GetParam());
  Load(v1::BF16);
  const std::vector<float> y = TensorFloats(Forward(golden), "y");
  ASSERT_EQ(y.size(), golden.y.size());
  EXPECT_TRUE(AllNear(y, golden.y, kBf16Error * LargestMagnitude(golden.y)));
  EXPECT_LE(RelativeL2(y, golden.y), kBf16Error);
}

// Saved, loaded from the file and saved again: the same bytes, and the same answers.
TEST_P(GoldenOverRpc, SavedLayersComeBackBitForBit) {
  const GoldenTensors golden = ReadGolden(GetParam());
  const std::string name = GoldenName(GetParam());
  const TempDir dir;
  const std::string first = dir.Path("first.safetensors");
  const std::string second = dir.Path("second.safetensors");
  Load(v1::F32);
  const std::vector<float> y = TensorFloats(Forward(golden), "y");
  server_->HeadwiseJson({"save", name, "--output", first});
  const nlohmann::json shown = server_->HeadwiseJson({"show", name});
  server_->HeadwiseJson({"load", name, "--layer-file", first, "--replace"});
  server_->HeadwiseJson({"save", name, "--output", second});
  EXPECT_EQ(ReadBytes(first), ReadBytes(second));
  EXPECT_TRUE(SameBits(TensorFloats(Forward(golden), "y"), y));
  const nlohmann::json again = server_->HeadwiseJson({"show", name});
  for (const char* key : {"source", "spec", "x_enters", "y_leaves", "head_ids"}) {
    EXPECT_EQ(shown[key], again[key]) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenOverRpc, ::testing::ValuesIn(GoldenLayers()),
                         [](const auto& layer) { return GoldenName(layer.param); });

TEST(GoldenShow, TellsTheLayoutTensorByTensor) {
  const ServerProcess server;
  server.HeadwiseJson(
      {"load", "t5", "--checkpoint", "golden/t5_relative_bias", "--layer", "decoder.1"});
  const nlohmann::json show = server.HeadwiseJson({"show", "t5"});
  EXPECT_EQ(show["source"]["layer"], "decoder.1");
  EXPECT_EQ(show["source"]["prefix"], "decoder.block.1.layer.0.SelfAttention");
  ASSERT_EQ(show["tensors"].size(), 6u);
  EXPECT_EQ(show["tensors"][4]["role"], "POSITION_BIAS");
  EXPECT_EQ(show["tensors"][4]["name"],
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
  EXPECT_EQ(show["spec"]["position_bias"]["kind"], "T5_BUCKETS");
  EXPECT_EQ(show["tensors"][5]["name"], "decoder.block.1.layer.0.layer_norm.weight");
  EXPECT_EQ(show["spec"]["pre_norm"]["kind"], "RMS");
  EXPECT_THAT(server.Headwise({"show", "t5"}).out,
              HasSubstr("pre-norm  RMS, epsilon 1e-06, weight (x has been through it)\n"));
}

}  // namespace
}  // namespace headwise
