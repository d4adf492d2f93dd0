// SPDX-License-Identifier: Apache-2.0
// Damaged checkpoints over gRPC: each is refused, and the server goes on as if nothing had been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

constexpr char kConfig[] =
    R"({"model_type":"llama","hidden_size":2,"num_attention_heads":1,"num_hidden_layers":1,)"
    R"("rope_theta":10000.0})";
constexpr char kPrefix[] = "model.layers.0.self_attn.";

// A layer of width 2, one tensor described anew.
std::string WithTensor(const std::string& name, const std::string& shape, const std::string& range,
                       size_t payload = 64) {
  std::string json = "{";
  int64_t end = 0;
  for (const char* role : {"q", "k", "v", "o"}) {
    const bool other = name == role;
    absl::StrAppend(&json, end == 0 ? "" : ",", "\"", kPrefix, role,
                    "_proj.weight\":{\"dtype\":\"F32\",\"shape\":[", other ? shape : "2,2",
                    "],\"data_offsets\":[", other ? range : absl::StrCat(end, ",", end + 16), "]}");
    end += 16;
  }
  return SafetensorsBytes(json + "}", std::string(payload, '\0'));
}

std::string Sound() { return WithTensor("", "", ""); }

struct Damage {
  const char* what;
  std::string bytes;
};

std::vector<Damage> Damages() {
  const std::string tensor = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  std::string huge = LittleEndian(100u << 20, 8) + "{";
  huge.resize(8 + (100u << 20), ' ');
  return {
      {"empty", ""},
      {"header beyond the file", LittleEndian(uint64_t{1} << 20, 8) + "{}"},
      {"header of 2^64 - 1", LittleEndian(~uint64_t{0}, 8) + "{}"},
      {"header beyond 100 MB", LittleEndian((100u << 20) + 1, 8) + "{}"},
      {"header of 100 MB", std::move(huge)},
      {"overlap", WithTensor("k", "2,2", "8,24")},
      {"hole", WithTensor("k", "2,2", "20,36", 80)},
      {"end before begin", WithTensor("k", "2,2", "32,16")},
      {"trailing bytes", WithTensor("", "", "", 65)},
      {"cut", WithTensor("", "", "", 63)},
      {"dtype x shape is not bytes", WithTensor("k", "2,3", "16,32")},
      {"shape overflows", WithTensor("k", "4294967296,4294967296", "16,32")},
      {"dimension beyond 2^63", WithTensor("k", "9223372036854775808", "16,32")},
      {"negative dimension", WithTensor("k", "-2,-2", "16,32")},
      {"a name twice", SafetensorsBytes("{\"a\":" + tensor + ",\"a\":" + tensor + "}", "z")},
      {"bad UTF-8", SafetensorsBytes("{\"\xff\xfe\":" + tensor + "}", "z")},
      {"deep nesting", SafetensorsBytes("{\"a\":" + std::string(100000, '['), "")},
      {"no JSON", SafetensorsBytes("weights", "")},
  };
}

class Corrupt : public ::testing::Test {
 protected:
  Corrupt() : server_({"--repository", dir_.Path("root")}), client_(ConnectTo(server_)) {}

  absl::Status Load(const std::string& checkpoint) {
    v1::LoadLayerRequest request;
    request.set_name("layer");
    request.set_checkpoint(checkpoint);
    request.set_layer("0");
    request.set_replace(true);
    return client_->LoadLayer(request).status();
  }

  // The layer that was there answers as before.
  void ExpectUnharmed() {
    const auto y = client_->Forward(MakeForwardRequest("sound", {1, 2}, {1}));
    ASSERT_TRUE(y.ok()) << y.status();
    const auto list = client_->ListLayers();
    ASSERT_TRUE(list.ok());
    EXPECT_EQ(list->layers_size(), 1);
  }

  void SetUp() override {
    v1::LoadLayerRequest request;
    request.set_name("sound");
    request.set_checkpoint("sound");
    request.set_layer("0");
    const auto loaded = client_->LoadLayer(request);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
  }

  // A repository beside other files, made before the server starts.
  struct Folder : TempDir {
    Folder() {
      Write("root/sound/config.json", kConfig);
      Write("root/sound/model.safetensors", Sound());
      Write("outside/config.json", kConfig);
      Write("outside/model.safetensors", Sound());
    }
  };
  const Folder dir_;
  const ServerProcess server_;
  const std::unique_ptr<client::Client> client_;
};

TEST_F(Corrupt, WeightsAreDataLoss) {
  dir_.Write("root/bad/config.json", kConfig);
  for (const Damage& damage : Damages()) {
    dir_.Write("root/bad/model.safetensors", damage.bytes);
    const absl::Status status = Load("bad");
    EXPECT_TRUE(absl::IsDataLoss(status)) << damage.what << ": " << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("model.safetensors"))
        << damage.what;
    EXPECT_LT(status.message().size(), 600u) << damage.what;
  }
  ExpectUnharmed();
}

TEST_F(Corrupt, ConfigsAreDataLoss) {
  dir_.Write("root/bad/model.safetensors", Sound());
  for (const std::string& config :
       {std::string(), std::string("{"), std::string("[]"), std::string(kConfig) + "}",
        std::string("{\"model_type\":\"llama\",\"model_type\":\"bert\"}"),
        "{\"a\":" + std::string(100000, '['), std::string("{\"\xff\":1}"),
        std::string((1u << 20) + 1, ' ')}) {
    dir_.Write("root/bad/config.json", config);
    const absl::Status status = Load("bad");
    EXPECT_TRUE(absl::IsDataLoss(status)) << config.substr(0, 40) << ": " << status;
  }
  ExpectUnharmed();
}

TEST_F(Corrupt, NothingOutsideTheRepositoryIsReached) {
  dir_.Link("../outside", "root/link");
  dir_.Link(dir_.Path("outside"), "root/absolute");
  for (const std::string& checkpoint :
       {std::string("../outside"), std::string("sound/../../outside"), dir_.Path("outside"),
        std::string("link"), std::string("absolute"), std::string("/")}) {
    const absl::Status status = Load(checkpoint);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << checkpoint << ": " << status;
  }
  dir_.Write("root/weights/config.json", kConfig);
  dir_.Link("../../outside/model.safetensors", "root/weights/model.safetensors");
  EXPECT_TRUE(absl::IsDataLoss(Load("weights")));
  ExpectUnharmed();
}

// Files that shrink and grow while they are read: an error at worst, never a signal.
TEST_F(Corrupt, AFileThatShrinksWhileItIsRead) {
  constexpr int64_t kBytes = 2048 * 2048 * 4;
  std::string json = "{";
  int64_t end = 0;
  for (const char* role : {"q", "k", "v", "o"}) {
    absl::StrAppend(&json, end == 0 ? "" : ",", "\"", kPrefix, role,
                    "_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2048,2048],\"data_offsets\":[",
                    end, ",", end + kBytes, "]}");
    end += kBytes;
  }
  const std::string head = SafetensorsBytes(json + "}", "");
  dir_.Write("root/shrinking/config.json",
             R"({"model_type":"llama","hidden_size":2048,"num_attention_heads":32,)"
             R"("num_hidden_layers":1,"rope_theta":10000.0})");
  const std::string path = dir_.Write("root/shrinking/model.safetensors", head);
  const uintmax_t whole = head.size() + static_cast<uintmax_t>(end);
  std::filesystem::resize_file(path, whole);
  std::atomic<bool> stop{false};
  std::thread cutter([&] {
    while (!stop.load()) {
      std::filesystem::resize_file(path, head.size() + kBytes);
      std::filesystem::resize_file(path, whole);
    }
  });
  int64_t refused = 0;
  for (int i = 0; i < 20; ++i) {
    const absl::Status status = Load("shrinking");
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
    refused += status.ok() ? 0 : 1;
    (void)client_->UnloadLayer("layer");
  }
  stop.store(true);
  cutter.join();
  EXPECT_GT(refused, 0);
  ExpectUnharmed();
}

}  // namespace
}  // namespace headwise
