// SPDX-License-Identifier: Apache-2.0
// A layer as wide as the largest public ones: D 8192, H 64, G 8. Takes a minute and gigabytes, so
// it runs only where it is asked for: `./dev test -C large -L large`.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

constexpr int64_t kWidth = 8192;
constexpr int64_t kParameters = 2 * kWidth * kWidth + 2 * (kWidth / 8) * kWidth;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Loads the layer and runs 64 tokens; prints what both cost.
std::vector<float> LoadAndRun(const std::string& repository, v1::DType dtype) {
  const ServerProcess server({"--repository", repository});
  const auto client = ConnectTo(server, 300.0);
  v1::LoadLayerRequest request;
  request.set_name("large");
  request.set_checkpoint("large");
  request.set_layer("0");
  request.set_dtype(dtype);
  const int64_t peak_before = server.PeakResidentBytes();
  auto start = std::chrono::steady_clock::now();
  const auto loaded = client->LoadLayer(request);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return {};
  const double load_s = SecondsSince(start);
  const auto forward = MakeForwardRequest("large", RandomFloats(64 * kWidth, 1), {24, 40}, {v1::Y});
  start = std::chrono::steady_clock::now();
  const auto answer = client->Forward(forward);
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return {};
  std::printf("%s: loaded in %.2f s, peak %.0f MB, resident %.0f MB; 64 tokens in %.0f ms\n",
              v1::DType_Name(dtype).c_str(), load_s,
              static_cast<double>(server.PeakResidentBytes() - peak_before) * 1e-6,
              static_cast<double>(server.ResidentBytes()) * 1e-6, SecondsSince(start) * 1e3);
  return TensorFloats(*answer, "y");
}

TEST(LargeLayer, LoadsAndRunsInF32AndInt8) {
  const TempDir repository;
  const std::string make = absl::StrCat("python3 ", TestDataPath("data/large_layer/make.py"), " ",
                                        repository.Path("large"));
  ASSERT_EQ(std::system(make.c_str()), 0);
  std::printf("%.0f million parameters\n", static_cast<double>(kParameters) * 1e-6);
  const std::vector<float> exact = LoadAndRun(repository.path(), v1::F32);
  const std::vector<float> reduced = LoadAndRun(repository.path(), v1::INT8);
  ASSERT_EQ(exact.size(), static_cast<size_t>(64 * kWidth));
  ASSERT_EQ(reduced.size(), exact.size());
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double y = static_cast<double>(exact[i]);
    const double difference = static_cast<double>(reduced[i]) - y;
    ASSERT_TRUE(std::isfinite(y));
    error += difference * difference;
    norm += y * y;
  }
  EXPECT_GT(norm, 0.0);
  std::printf("int8: relative L2 error %.4f\n", std::sqrt(error / norm));
  EXPECT_LT(std::sqrt(error / norm), 0.05);
}

}  // namespace
}  // namespace headwise
