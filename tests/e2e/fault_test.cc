// SPDX-License-Identifier: Apache-2.0
// Broken disks and sudden deaths: what is there after the next start is whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/compare.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kWidth = 512, kHeads = 8;  // 4 MiB of weights

v1::ForwardRequest Request(const std::string& layer) {
  return MakeForwardRequest(layer, RandomFloats(4 * kWidth, 1), {4});
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

absl::StatusOr<v1::SaveLayerResponse> Save(client::Client* client, const std::string& file) {
  v1::SaveLayerRequest request;
  request.set_name("layer");
  request.set_file(file);
  return client->SaveLayer(request);
}

// y of the saved layer, loaded again under another name; none if that is refused.
std::vector<float> LoadedY(client::Client* client, const std::string& path) {
  client::UploadTarget target;
  target.name = "again";
  target.replace = true;
  const auto loaded = client->UploadSavedLayer(path, target);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  const auto answer = client->Forward(Request("again"));
  return answer.ok() ? TensorFloats(*answer, "y") : std::vector<float>();
}

TEST(Fault, KillingASaveLeavesAWholeFileOrNone) {
  const TempDir dir;
  std::vector<float> expected;
  std::mt19937 random(4);
  int saved = 0;
  for (int round = 0; round < 8; ++round) {
    ServerProcess server({"--save-dir", dir.path()});
    const auto client = ConnectTo(server);
    // Of the round before: nothing half, nothing temporary.
    for (const std::string& name : FilesIn(dir.path())) {
      EXPECT_EQ(name, "layer.safetensors");
      EXPECT_TRUE(SameBits(LoadedY(client.get(), dir.Path(name)), expected));
      ++saved;
    }
    std::filesystem::remove(dir.Path("layer.safetensors"));
    UploadRandomLayer(client.get(), "layer", kWidth, kHeads);
    const auto answer = client->Forward(Request("layer"));
    ASSERT_TRUE(answer.ok()) << answer.status();
    expected = TensorFloats(*answer, "y");
    auto saving = std::async(std::launch::async, [&] {
      for (int i = 0; i < 100 && Save(client.get(), "layer.safetensors").ok(); ++i) {
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    server.Signal(SIGKILL);
    EXPECT_EQ(server.WaitForExit(10.0), 128 + SIGKILL);
    saving.get();
  }
  EXPECT_GT(saved, 0);
}

TEST(Fault, KillingADownloadLeavesNoHalfFile) {
  const TempDir dir;
  std::mt19937 random(5);
  for (int round = 0; round < 4; ++round) {
    ServerProcess server;
    UploadRandomLayer(ConnectTo(server).get(), "layer", 2 * kWidth, kHeads);
    auto download = std::async(std::launch::async, [&] {
      return server.Headwise({"save", "layer", "--output", dir.Path("layer.safetensors")});
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    server.Signal(SIGKILL);
    EXPECT_EQ(server.WaitForExit(10.0), 128 + SIGKILL);
    const CommandResult result = download.get();
    if (result.exit_code == 0) {
      EXPECT_THAT(FilesIn(dir.path()), ::testing::ElementsAre("layer.safetensors"));
      std::filesystem::remove(dir.Path("layer.safetensors"));
    } else {
      EXPECT_THAT(FilesIn(dir.path()), IsEmpty()) << result.err;
    }
  }
}

absl::Status LoadMiniLm(client::Client* client) {
  v1::LoadLayerRequest request;
  request.set_name("layer");
  request.set_replace(true);
  request.set_checkpoint("data/minilm");
  request.set_layer("0");
  return client->LoadLayer(request).status();
}

// Kills a server while `bring` gives it a layer over and over: the next one knows nothing of it,
// and its folder holds nothing.
void KillWhileALayerComes(const std::function<absl::Status(client::Client*)>& bring) {
  const TempDir dir;
  std::mt19937 random(6);
  for (int round = 0; round < 4; ++round) {
    ServerProcess server({"--save-dir", dir.path()});
    const auto client = ConnectTo(server);
    EXPECT_TRUE(client->ListLayers()->layers().empty());
    auto last = std::async(std::launch::async, [&] {
      absl::Status status;
      for (int i = 0; i < 1000 && status.ok(); ++i) status = bring(client.get());
      return status;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    server.Signal(SIGKILL);
    EXPECT_EQ(server.WaitForExit(10.0), 128 + SIGKILL);
    EXPECT_TRUE(absl::IsUnavailable(last.get()));  // the kill met one under way
    EXPECT_THAT(FilesIn(dir.path()), IsEmpty());
  }
}

TEST(Fault, KillingALoadLeavesNothing) { KillWhileALayerComes(LoadMiniLm); }

TEST(Fault, KillingAnUploadLeavesNothing) {
  const TempDir saved;
  ServerProcess source;
  UploadRandomLayer(ConnectTo(source).get(), "layer", 2 * kWidth, kHeads);
  const std::string file = saved.Path("layer.safetensors");
  ASSERT_EQ(source.Headwise({"save", "layer", "--output", file}).exit_code, 0);
  KillWhileALayerComes([&](client::Client* client) {
    client::UploadTarget target;
    target.name = "layer";
    target.replace = true;
    return client->UploadSavedLayer(file, target).status();
  });
}

TEST(Fault, AFullDiskRefusesTheSaveAndKeepsTheOldFile) {
  const TempDir dir;
  ServerProcess server({"--save-dir", dir.path()});
  const auto client = ConnectTo(server);
  UploadRandomLayer(client.get(), "layer", kWidth, kHeads);
  ASSERT_TRUE(Save(client.get(), "layer.safetensors").ok());
  const std::string before = ReadBytes(dir.Path("layer.safetensors"));
  // No file may grow beyond a mebibyte, which is where this disk ends.
  const rlimit limit{1 << 20, 1 << 20};
  ASSERT_EQ(prlimit(server.pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  for (const char* file : {"layer.safetensors", "other.safetensors"}) {
    const absl::Status status = Save(client.get(), file).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  }
  EXPECT_THAT(FilesIn(dir.path()), ::testing::ElementsAre("layer.safetensors"));
  EXPECT_EQ(ReadBytes(dir.Path("layer.safetensors")), before);
  EXPECT_TRUE(client->Forward(Request("layer")).ok());
}

}  // namespace
}  // namespace headwise
