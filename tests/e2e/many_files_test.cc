// SPDX-License-Identifier: Apache-2.0
// `ablate` over many files says what it says of all their sequences in one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/stored_layer.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

OwnedTensor Integers(Shape shape, const std::vector<int64_t>& values) {
  OwnedTensor tensor{.dtype = DType::kI64, .shape = std::move(shape), .data = {}};
  tensor.data.resize(values.size() * sizeof(int64_t));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

// The numbers agree to 1e-9 of their size, everything else exactly.
void ExpectSame(const json& a, const json& b, const std::string& path) {
  if (a.is_number_float() || b.is_number_float()) {
    const double x = a.get<double>(), y = b.get<double>();
    EXPECT_NEAR(x, y, 1e-9 * std::max(1e-3, std::fabs(y))) << path;
    return;
  }
  ASSERT_EQ(a.type(), b.type()) << path;
  if (a.is_object()) {
    for (const auto& [key, value] : b.items()) {
      ASSERT_TRUE(a.contains(key)) << path << "." << key;
      ExpectSame(a[key], value, path + "." + key);
    }
  } else if (a.is_array()) {
    ASSERT_EQ(a.size(), b.size()) << path;
    for (size_t i = 0; i < a.size(); ++i) ExpectSame(a[i], b[i], absl::StrCat(path, "[", i, "]"));
  } else {
    EXPECT_EQ(a, b) << path;
  }
}

// One input, as a file and cut into files.
class Cut {
 public:
  // `cuts`: how many sequences the files but the last hold together.
  Cut(const TempDir& dir, int64_t width, const std::vector<float>& x,
      const std::vector<int64_t>& lengths, std::vector<size_t> cuts) {
    cuts.push_back(lengths.size());
    Write(dir, "whole", width, x, lengths, &whole_);
    size_t sequence = 0;
    int64_t row = 0;
    for (const size_t end : cuts) {
      const std::vector<int64_t> own(lengths.begin() + static_cast<int64_t>(sequence),
                                     lengths.begin() + static_cast<int64_t>(end));
      const int64_t rows = std::accumulate(own.begin(), own.end(), int64_t{0});
      Write(dir, absl::StrCat("part", end), width,
            {x.begin() + row * width, x.begin() + (row + rows) * width}, own, &parts_);
      row += rows;
      sequence = end;
    }
  }

  // The verb on all of it and on its parts; nothing but the timing and the number of forwards may
  // differ. Returns the answer on the parts.
  json ExpectOneAnswer(const ServerProcess& server, std::vector<std::string> verb) const {
    const json whole = Run(server, verb, whole_);
    json parts = Run(server, verb, parts_);
    json cleaned = whole;
    for (const char* key : {"compute_us", "queue_us", "forwards", "request_id", "batch_requests",
                            "batch_tokens", "tensors"}) {
      cleaned.erase(key);
    }
    ExpectSame(parts, cleaned, "answer");
    return parts;
  }
  json RunParts(const ServerProcess& server, const std::vector<std::string>& verb) const {
    return Run(server, verb, parts_);
  }

 private:
  struct Files {
    std::string x, lengths;
  };
  static void Write(const TempDir& dir, const std::string& name, int64_t width,
                    const std::vector<float>& x, const std::vector<int64_t>& lengths,
                    Files* files) {
    const std::string file = dir.Path(name + ".safetensors");
    const OwnedTensor numbers = FloatTensor({static_cast<int64_t>(x.size()) / width, width}, x);
    const OwnedTensor ids = Integers({static_cast<int64_t>(lengths.size())}, lengths);
    ASSERT_TRUE(WriteSafetensors(file, {{"x", numbers.view()}, {"lengths", ids.view()}}).ok());
    absl::StrAppend(&files->x, files->x.empty() ? "" : ",", file, ":x");
    absl::StrAppend(&files->lengths, files->lengths.empty() ? "" : ",", file, ":lengths");
  }
  static json Run(const ServerProcess& server, std::vector<std::string> verb, const Files& files) {
    verb.insert(verb.end(), {"--input", files.x, "--lengths-from", files.lengths});
    return server.HeadwiseJson(std::move(verb));
  }

  Files whole_, parts_;
};

class ManyFiles : public ::testing::Test {
 protected:
  ManyFiles() {
    server_.HeadwiseJson({"load", "m0", "--checkpoint", "data/minilm", "--layer", "0"});
  }

  Cut Minilm(std::vector<size_t> cuts) const {
    const auto inputs = OpenSafetensors("data/minilm/inputs.safetensors");
    return {dir_, 384, ReadFloats(*inputs, "layer0.x"), ReadIntegers(*inputs, "lengths"),
            std::move(cuts)};
  }

  ServerProcess server_;
  TempDir dir_;
};

TEST_F(ManyFiles, EverySweepAddsUp) {
  const Cut input = Minilm({7, 8});
  json parts = input.ExpectOneAnswer(server_, {"ablate", "m0", "--sweep", "pairs", "--seed", "3"});
  EXPECT_EQ(parts["forwards"], 3);
  EXPECT_EQ(parts["ablations"].size(), 66u);
  EXPECT_NEAR(parts["interactions"][0]["relative_l2"].get<double>(),
              parts["ablations"][0]["effect"]["relative_l2"].get<double>(), 1e-12);
  parts = input.ExpectOneAnswer(server_, {"ablate", "m0", "--sweep", "prune-plan"});
  EXPECT_EQ(parts["prune_plan"]["steps"].size(), 11u);
  parts = input.ExpectOneAnswer(server_, {"ablate", "m0", "--sweep", "cumulative"});
  EXPECT_EQ(parts["forwards"], 6);  // a pass over the files finds the order
  parts = input.ExpectOneAnswer(server_, {"ablate", "m0", "--sweep", "cumulative", "--kind", "mean",
                                          "--tokens-range", "2:9"});
  EXPECT_EQ(parts["forwards"], 9);
  EXPECT_EQ(parts["ablations"][0]["interventions"][0]["kind"], "MEAN");
}

TEST_F(ManyFiles, EveryKindAddsUp) {
  const Cut input = Minilm({1, 7, 20});
  const std::string edges = dir_.Path("edges.safetensors");
  const OwnedTensor three = Integers({3, 3}, {0, 4, 1, 7, 3, 2, 23, 5, 5});
  ASSERT_TRUE(WriteSafetensors(edges, {{"x", three.view()}}).ok());
  const std::string rows = dir_.Path("rows.safetensors");
  const OwnedTensor replaced = FloatTensor({538, 32}, RandomFloats(538 * 32, 3));
  ASSERT_TRUE(WriteSafetensors(rows, {{"x", replaced.view()}}).ok());
  const std::string donor = TestDataPath("data/minilm/inputs.safetensors");
  for (const std::vector<std::string>& kind :
       std::vector<std::vector<std::string>>{{"--kind", "scale", "--scale", "0.5"},
                                             {"--kind", "mean"},
                                             {"--kind", "uniform", "--tokens-range", "20:"},
                                             {"--kind", "replace", "--replace", rows},
                                             {"--kind", "donor", "--donor", donor + ":layer3.x"},
                                             {"--kind", "knockout", "--edges", edges}}) {
    std::vector<std::string> verb = {"ablate", "m0", "--heads", "3"};
    verb.insert(verb.end(), kind.begin(), kind.end());
    SCOPED_TRACE(kind[1]);
    input.ExpectOneAnswer(server_, verb);
  }
  // Sequences by number, in a mixture.
  const std::string mixture = dir_.Write("mixture.json", R"([{"interventions":[
      {"kind":"ZERO","heads":[2],"sequences":[0,7,23]},
      {"kind":"MEAN","heads":[5,1],"sequences":[3,8]}]},{"interventions":[]}])");
  const json parts = input.ExpectOneAnswer(server_, {"ablate", "m0", "--ablations", mixture});
  EXPECT_EQ(parts["ablations"][0]["interventions"][0]["sequences"], (json{0, 7, 23}));
}

TEST_F(ManyFiles, ResamplingStaysWithinAFileAndSaysSo) {
  const json parts =
      Minilm({7}).RunParts(server_, {"ablate", "m0", "--heads", "3", "--kind", "resample",
                                     "--draws", "3", "--tokens-range", ":4"});
  EXPECT_THAT(parts["scope"]["text"].get<std::string>(),
              HasSubstr("resampled within each input file"));
  EXPECT_GT(parts["ablations"][0]["effect"]["l2"].get<double>(), 0.0);
}

TEST_F(ManyFiles, GramsAndMeansAreThoseOfAll) {
  const auto read = [&](const Cut& input, const std::string& name) {
    const std::string file = dir_.Path(name);
    input.RunParts(server_,
                   {"ablate", "m0", "--heads", "3", "--gram", "--means", "--output", file});
    auto opened = SafetensorsFile::Open(file);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  };
  const auto two = read(Minilm({7}), "two.safetensors"), three = read(Minilm({2, 9}), "three.st");
  for (const char* name : {"gram", "b", "y_sq", "z_mean"}) {
    const std::vector<double> a = ReadDoubles(*two, name), b = ReadDoubles(*three, name);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-9 * std::fabs(b[i]) + 1e-12);
  }
  EXPECT_EQ(ReadIntegers(*two, "tokens"), std::vector<int64_t>{538});
  EXPECT_EQ(ReadIntegers(*three, "z_tokens"), std::vector<int64_t>(12, 538));
  EXPECT_EQ(ReadDoubles(*two, "gram").size(), 144u);
}

TEST_F(ManyFiles, WhatDoesNotFitIsRefused) {
  const std::string file = TestDataPath("data/minilm/inputs.safetensors");
  const std::string both = absl::StrCat(file, ":layer0.x,", file, ":layer0.x");
  const auto refused = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"ablate", "m0", "--input", both};
    words.insert(words.end(), more.begin(), more.end());
    return server_.Headwise(words);
  };
  EXPECT_EQ(refused({"--heads", "1", "--output", "x.safetensors"}).exit_code, 2);
  EXPECT_EQ(refused({"--heads", "1", "--lengths", "538"}).exit_code, 2);
  EXPECT_EQ(refused({"--heads", "1", "--mask", "one.npy", "--mask-kind", "keep"}).exit_code, 2);
  CommandResult result = refused({"--sweep", "prune-plan", "--folds", "3"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("folds: must be in [2, 2]"));
  result = refused({"--heads", "1", "--tokens-range", "538:"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("token range: must select a token"));
}

// A million tokens, in ten files and in one.
TEST(MillionTokens, AddUpToTheConcatenation) {
  const TempDir dir;
  const ServerProcess server;
  constexpr int64_t kWidth = 4, kTokens = 1'000'000;
  std::vector<int64_t> lengths;
  int64_t rows = 0;
  for (int64_t i = 0; rows < kTokens; ++i) {
    lengths.push_back(std::min(40 + i * 7919 % 121, kTokens - rows));
    rows += lengths.back();
  }
  std::vector<size_t> cuts;
  for (size_t i = 1; i < 10; ++i) cuts.push_back(i * lengths.size() / 10);
  const Cut input(dir, kWidth, RandomFloats(kTokens * kWidth, 5), lengths, cuts);
  const std::string weights = TestDataPath("data/two_head/weights.safetensors");
  const std::string spec = TestDataPath("data/two_head/spec.json");
  server.HeadwiseJson({"load", "two", "--spec", spec, "--weights", weights});
  json parts = input.ExpectOneAnswer(server, {"ablate", "two", "--sweep", "leave-one-out", "--kind",
                                              "mean", "--resamples", "100"});
  EXPECT_EQ(parts["scope"]["n_tokens"], kTokens);
  parts = input.ExpectOneAnswer(server,
                                {"ablate", "two", "--sweep", "prune-plan", "--resamples", "100"});
  EXPECT_EQ(parts["prune_plan"]["steps"].size(), 1u);
}

}  // namespace
}  // namespace headwise
