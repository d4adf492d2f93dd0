// SPDX-License-Identifier: Apache-2.0
// What loading a layer costs: bytes read and memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/format/safetensors.h"
#include "core/kernel/packed_matrix.h"
#include "core/kernel/tile_kernel.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

constexpr int64_t kWidth = 4096, kHeads = 32;

// A safetensors header in the making: tensors one after the other.
class HeaderMaker {
 public:
  explicit HeaderMaker(std::string dtype, int64_t element_bytes)
      : dtype_(std::move(dtype)), element_bytes_(element_bytes) {}

  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    const int64_t elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    const int64_t end = end_ + elements * element_bytes_;
    absl::StrAppend(&json_, json_.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"", dtype_,
                    "\",\"shape\":[", absl::StrJoin(shape, ","), "],\"data_offsets\":[", end_, ",",
                    end, "]}");
    end_ = end;
  }

  // Writes a file whose tensors are a hole: zeros that take no room on disk.
  void Write(const TempDir& dir, const std::string& file) const {
    const std::string head = SafetensorsBytes(absl::StrCat(json_, "}"), "");
    const std::string path = dir.Write(file, head);
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(head.size()) + end_), 0);
  }

 private:
  const std::string dtype_;
  const int64_t element_bytes_;
  std::string json_;
  int64_t end_ = 0;
};

// LLaMA, two layers of 4096 in f32 between 4 GB of other tensors.
void WriteCheckpoint(const TempDir& dir) {
  dir.Write("large/config.json",
            absl::StrCat(R"({"model_type":"llama","hidden_size":)", kWidth,
                         R"(,"num_attention_heads":)", kHeads, R"(,"num_key_value_heads":)", kHeads,
                         R"(,"num_hidden_layers":2,"rope_theta":10000.0})"));
  HeaderMaker header("F32", 4);
  header.Add("model.embed_tokens.weight", {128000, kWidth});
  for (const int layer : {0, 1}) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      header.Add(absl::StrCat(prefix, "self_attn.", name, ".weight"), {kWidth, kWidth});
    }
    header.Add(absl::StrCat(prefix, "mlp.up_proj.weight"), {4 * kWidth, kWidth});
  }
  header.Add("lm_head.weight", {128000, kWidth});
  header.Write(dir, "large/model.safetensors");
}

// Bytes that the process has read from files, from /proc.
int64_t ReadBytesSoFar(pid_t pid) {
  std::ifstream io(absl::StrCat("/proc/", pid, "/io"));
  std::string key;
  int64_t bytes = 0;
  io >> key >> bytes;
  EXPECT_EQ(key, "rchar:");
  return bytes;
}

v1::LoadLayerRequest LoadRequest(const std::string& name, const std::string& layer) {
  v1::LoadLayerRequest request;
  request.set_name(name);
  request.set_checkpoint("large");
  request.set_layer(layer);
  return request;
}

// Loads the layer and holds what is read and what memory it takes to the layer's bytes, in the file
// and in memory.
void ExpectLean(const TempDir& repository, v1::DType dtype, int64_t stored_bytes,
                int64_t layer_bytes) {
  const ServerProcess server({"--repository", repository.path()});
  const auto client = ConnectTo(server);
  v1::LoadLayerRequest request = LoadRequest("one", "1");
  request.set_dtype(dtype);
  const int64_t read_before = ReadBytesSoFar(server.pid());
  const int64_t peak_before = server.PeakResidentBytes();
  const auto loaded = client->LoadLayer(request);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const double read = static_cast<double>(ReadBytesSoFar(server.pid()) - read_before);
  const double grown = static_cast<double>(server.PeakResidentBytes() - peak_before);
  std::printf("%s: read %.4f, peak memory %.4f of the layer's bytes\n",
              v1::DType_Name(dtype).c_str(), read / static_cast<double>(stored_bytes),
              grown / static_cast<double>(layer_bytes));
  EXPECT_GE(read, static_cast<double>(stored_bytes));
  EXPECT_LT(read, static_cast<double>(stored_bytes + (1 << 20)));
  EXPECT_LT(grown, 2.2 * static_cast<double>(layer_bytes));
}

TEST(Load, ALayerOfALargeCheckpointReadsItsOwnBytesAndTakesLittleMore) {
  const TempDir repository;
  WriteCheckpoint(repository);
  constexpr int64_t kNumbers = 4 * kWidth * kWidth;
  ExpectLean(repository, v1::F32, kNumbers * 4, kNumbers * 4);
  ExpectLean(repository, v1::BF16, kNumbers * 4, kNumbers * 2);
  ExpectLean(repository, v1::INT8, kNumbers * 4, kNumbers);
}

TEST(Load, StoredInByOutToo) {
  const TempDir repository;
  repository.Write("large/config.json",
                   absl::StrCat(R"({"model_type":"gpt2","n_embd":)", kWidth, R"(,"n_head":)",
                                kHeads, R"(,"n_layer":2,"n_positions":1024})"));
  HeaderMaker header("F32", 4);
  for (const int layer : {0, 1}) {
    const std::string prefix = absl::StrCat("h.", layer, ".attn.");
    header.Add(absl::StrCat(prefix, "c_attn.weight"), {kWidth, 3 * kWidth});
    header.Add(absl::StrCat(prefix, "c_attn.bias"), {3 * kWidth});
    header.Add(absl::StrCat(prefix, "c_proj.weight"), {kWidth, kWidth});
    header.Add(absl::StrCat(prefix, "c_proj.bias"), {kWidth});
  }
  header.Write(repository, "large/model.safetensors");
  constexpr int64_t kNumbers = 4 * kWidth * kWidth;
  ExpectLean(repository, v1::F32, kNumbers * 4, kNumbers * 4);
  ExpectLean(repository, v1::INT8, kNumbers * 4, kNumbers);
}

// Seconds of reading the four matrices of layer 1 from the page cache and packing each once.
double ReadAndPackSeconds(const SafetensorsFile& file) {
  const auto start = std::chrono::steady_clock::now();
  constexpr int64_t kElements = kWidth * kWidth;
  const std::vector<int64_t> widths(kWidth / 64, 64);
  std::vector<PackedMatrix> matrices;
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    const auto bytes = std::make_unique_for_overwrite<float[]>(kElements);
    const absl::Status read = file.ReadPart(
        absl::StrCat("model.layers.1.self_attn.", name, ".weight"), 0,
        absl::MakeSpan(reinterpret_cast<char*>(bytes.get()), kElements * sizeof(float)));
    EXPECT_TRUE(read.ok()) << read;
    auto packed = PackedMatrix::Pack(BestKernelPath(), TileType::kF32,
                                     absl::MakeConstSpan(bytes.get(), kElements), {},
                                     {kWidth, kWidth, widths, {}}, 64);
    EXPECT_TRUE(packed.ok()) << packed.status();
    matrices.push_back(*std::move(packed));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Load, FromThePageCacheIsAsQuickAsReadingAndPackingOnce) {
  const TempDir repository;
  WriteCheckpoint(repository);
  const auto file = SafetensorsFile::Open(repository.Path("large/model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const ServerProcess server({"--repository", repository.path()});
  const auto client = ConnectTo(server);
  double load = 1e9, plain = 1e9;
  for (int i = 0; i < 5; ++i) {
    plain = std::min(plain, ReadAndPackSeconds(**file));
    const auto start = std::chrono::steady_clock::now();
    v1::LoadLayerRequest request = LoadRequest("one", "1");
    request.set_replace(true);
    const auto loaded = client->LoadLayer(request);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    load = std::min(
        load, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::printf("load_over_read_and_pack %.3f (%.0f ms over %.0f ms)\n", load / plain, load * 1e3,
              plain * 1e3);
  EXPECT_LT(load / plain, 1.5);
}

TEST(Load, SeveralAtATimeWithinABudgetThatRefusesWithItsFigures) {
  const TempDir repository;
  WriteCheckpoint(repository);
  constexpr int64_t kLayerBytes = 4 * kWidth * kWidth * 4;
  const ServerProcess server({"--repository", repository.path(), "--layer-budget-bytes",
                              absl::StrCat(kLayerBytes * 5 / 2)});
  const auto client = ConnectTo(server);
  const int64_t peak_before = server.PeakResidentBytes();
  std::vector<absl::Status> statuses(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < statuses.size(); ++i) {
    threads.emplace_back([&, i] {
      statuses[i] = client->LoadLayer(LoadRequest(absl::StrCat("layer", i), "1")).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  int loaded = 0;
  for (const absl::Status& status : statuses) {
    loaded += status.ok() ? 1 : 0;
    if (status.ok()) continue;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    for (const int64_t figure : {kLayerBytes * 5 / 2, kLayerBytes}) {
      EXPECT_NE(status.message().find(absl::StrCat(figure)), absl::string_view::npos) << status;
    }
  }
  EXPECT_EQ(loaded, 2);
  EXPECT_LT(server.PeakResidentBytes() - peak_before, kLayerBytes * 5 / 2);
}

}  // namespace
}  // namespace headwise
