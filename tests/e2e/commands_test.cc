// SPDX-License-Identifier: Apache-2.0
// The command line as scripts rely on it: files, flags, exit codes, JSON shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/stored_layer.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void ExpectKeys(const json& object, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) EXPECT_TRUE(object.contains(key)) << key << " in " << object;
}

// The file's tensor of floats.
std::vector<float> OutputFloats(const std::string& path, const std::string& name) {
  auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return ReadFloats(**file, name);
}

class Commands : public ::testing::Test {
 protected:
  std::vector<std::string> MinilmInput() const {
    return {"--input", TestDataPath("data/minilm/inputs.safetensors:layer0.x"), "--lengths-from",
            TestDataPath("data/minilm/inputs.safetensors:lengths")};
  }
  json Run(std::vector<std::string> verb, const std::vector<std::string>& more = {}) const {
    verb.insert(verb.end(), more.begin(), more.end());
    return server_.HeadwiseJson(std::move(verb));
  }
  void LoadMinilm() const { Run({"load", "m0", "--checkpoint", "data/minilm", "--layer", "0"}); }

  ServerProcess server_;
  TempDir dir_;
};

TEST_F(Commands, LoadListShowAndUnload) {
  LoadMinilm();
  const json list = Run({"list"});
  ASSERT_EQ(list["layers"].size(), 1u);
  ExpectKeys(list["layers"][0], {"name", "version", "state", "family", "dtype", "d_model", "heads",
                                 "kv_heads", "weight_bytes"});
  EXPECT_EQ(list["layers"][0]["family"], "bert");
  EXPECT_EQ(list["layers"][0]["weight_bytes"], "2365440");
  const json show = Run({"show", "m0"});
  ExpectKeys(show, {"name", "version", "state", "dtype", "kernel", "x_enters", "y_leaves",
                    "head_ids", "source", "spec", "tensors", "counts"});
  EXPECT_EQ(show["source"]["prefix"], "encoder.layer.0.attention");
  EXPECT_EQ(show["spec"]["orientation"], "OUT_IN");
  EXPECT_EQ(show["spec"]["dk"].size(), 12u);
  EXPECT_FALSE(show.contains("reduced_error"));
  EXPECT_EQ(show["tensors"].size(), 8u);
  EXPECT_EQ(
      server_.Headwise({"load", "m0", "--checkpoint", "data/minilm", "--layer", "1"}).exit_code, 1);
  const json replaced =
      Run({"load", "m0", "--checkpoint", "data/minilm", "--layer", "1", "--replace"});
  EXPECT_EQ(replaced["layer"]["version"], 2);
  Run({"unload", "m0"});
  const CommandResult gone = server_.Headwise({"show", "m0"});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.err, StartsWith("headwise: NOT_FOUND: "));
  EXPECT_EQ(gone.out, "");
}

TEST_F(Commands, RepositoryHealthAndCount) {
  LoadMinilm();
  const json repository = Run({"repository"});
  bool found = false;
  for (const json& checkpoint : repository["checkpoints"]) {
    if (checkpoint["dir"] != "data/smollm2") continue;
    found = true;
    EXPECT_EQ(checkpoint["family"], "llama");
    EXPECT_EQ(checkpoint["supported"], true);
    EXPECT_EQ(checkpoint["layers"], (json{"0", "12"}));
  }
  EXPECT_TRUE(found) << repository;
  EXPECT_EQ(server_.Headwise({"health"}).exit_code, 0);
  EXPECT_EQ(server_.Headwise({"health", "m0"}).exit_code, 0);
  EXPECT_EQ(server_.Headwise({"health", "nobody"}).exit_code, 1);
  const json count = Run({"count", "m0", "--batch", "2", "--queries", "10"});
  EXPECT_EQ(count["score_shape"], (json{2, 12, 10, 10}));
}

TEST_F(Commands, ForwardWritesTheTensorsThatWereAskedFor) {
  LoadMinilm();
  const std::string out = dir_.Path("out.safetensors");
  std::vector<std::string> verb = {"forward",  "m0", "--return", "y,p,z,q,k,v,scores,contributions",
                                   "--output", out};
  const json answer = Run(verb, MinilmInput());
  ExpectKeys(answer, {"layer", "layer_version", "request_id", "lengths", "batch_requests",
                      "batch_tokens", "queue_us", "compute_us", "tensors"});
  EXPECT_EQ(answer["lengths"].size(), 24u);
  EXPECT_EQ(answer["tensors"][0]["axes"], (json{"token", "feature"}));
  EXPECT_FALSE(answer["tensors"][0].contains("data"));
  auto file = SafetensorsFile::Open(out);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header().entries.size(), 6u + 2u * 24u);
  const std::vector<double> y =
      ReadDoubles(*OpenSafetensors("data/minilm/expected.safetensors"), "layer0.y");
  EXPECT_TRUE(AllNear(OutputFloats(out, "y"), y, 4e-6 * LargestMagnitude(y)));
}

TEST_F(Commands, AblateHasTheDocumentedShape) {
  LoadMinilm();
  const std::string out = dir_.Path("out.safetensors");
  std::vector<std::string> verb = {"ablate", "m0", "--sweep", "leave-one-out"};
  const json sweep = Run(verb, MinilmInput());
  ExpectKeys(sweep, {"layer", "layer_version", "sweep", "target", "forwards", "from_gram", "scope",
                     "y_l2", "y_l2_per_sequence", "ablations"});
  EXPECT_EQ(sweep["sweep"], "LEAVE_ONE_OUT");
  EXPECT_EQ(sweep["scope"]["n_tokens"], 538);
  ASSERT_EQ(sweep["ablations"].size(), 12u);
  const json& first = sweep["ablations"][0];
  ExpectKeys(first,
             {"index", "interventions", "heads", "effect", "per_sequence", "mean_over_sequences",
              "undefined_sequences", "undefined_reason", "intervals"});
  EXPECT_EQ(first["intervals"]["relative_l2"]["method"], "BCA");
  EXPECT_EQ(first["intervals"]["relative_l2"]["resamples"], 2000);
  EXPECT_EQ(first["interventions"][0]["kind"], "ZERO");
  EXPECT_NEAR(first["effect"]["relative_l2"].get<double>(), 0.2686413, 3e-6);
  const json pair =
      Run({"ablate", "m0", "--heads", "2,5", "--gram", "--output", out}, MinilmInput());
  ASSERT_EQ(pair["ablations"].size(), 1u);
  EXPECT_EQ(pair["ablations"][0]["heads"], (json{2, 5}));
  EXPECT_NEAR(pair["ablations"][0]["effect"]["relative_l2"].get<double>(), 0.752, 1e-3);
  auto file = SafetensorsFile::Open(out);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : (*file)->header().entries) names.push_back(entry.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("y", "ablation.0.y", "gram", "b", "y_sq"));
  const CommandResult unknown =
      server_.Headwise({"ablate", "m0", "--heads", "12", "--input",
                        TestDataPath("data/minilm/inputs.safetensors:layer0.x")});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, StartsWith("headwise: INVALID_ARGUMENT: heads: "));
}

TEST_F(Commands, GoldenCheckpointsReproduce) {
  for (const char* name : {"bert", "mistral_window"}) {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string folder = absl::StrCat("golden/", name);
      const std::string out = dir_.Path("y.safetensors");
      Run({"load", "g", "--checkpoint", folder, "--layer", absl::StrCat(layer), "--replace"});
      const std::string file = TestDataPath(folder + "/expected.safetensors");
      Run({"forward", "g", "--input", absl::StrCat(file, ":layer", layer, ".x"), "--lengths-from",
           file + ":lengths", "--output", out});
      const std::vector<double> y = ReadDoubles(*OpenSafetensors(folder + "/expected.safetensors"),
                                                absl::StrCat("layer", layer, ".y"));
      EXPECT_TRUE(AllNear(OutputFloats(out, "y"), y, 1e-5 * LargestMagnitude(y))) << folder;
    }
  }
}

TEST_F(Commands, OwnSpecAndUploadGiveTheBitsOfTheCheckpoint) {
  LoadMinilm();
  const std::string prefix = "encoder.layer.0.attention.";
  const json spec = {{"d_model", 384},
                     {"heads", 12},
                     {"orientation", "OUT_IN"},
                     {"tensors",
                      {{"q", prefix + "self.query.weight"},
                       {"k", prefix + "self.key.weight"},
                       {"v", prefix + "self.value.weight"},
                       {"o", prefix + "output.dense.weight"},
                       {"q_bias", prefix + "self.query.bias"},
                       {"k_bias", prefix + "self.key.bias"},
                       {"v_bias", prefix + "self.value.bias"},
                       {"o_bias", prefix + "output.dense.bias"}}}};
  Run({"load", "own", "--spec", dir_.Write("spec.json", spec.dump()), "--weights",
       TestDataPath("data/minilm/model.safetensors")});
  Run({"load", "sent", "--upload", TestDataPath("data/minilm"), "--layer", "0"});
  std::vector<std::vector<float>> ys;
  for (const char* name : {"m0", "own", "sent"}) {
    const std::string out = dir_.Path(absl::StrCat(name, ".safetensors"));
    Run({"forward", name, "--output", out}, MinilmInput());
    ys.push_back(OutputFloats(out, "y"));
  }
  EXPECT_TRUE(SameBits(ys[1], ys[0]));
  EXPECT_TRUE(SameBits(ys[2], ys[0]));
}

TEST_F(Commands, ErrorsAreOneLineWithTheRightExitCode) {
  EXPECT_EQ(server_.Headwise({"frobnicate"}).exit_code, 2);
  EXPECT_EQ(server_.Headwise({"forward"}).exit_code, 2);
  const CommandResult outside =
      server_.Headwise({"load", "m", "--checkpoint", "../etc", "--layer", "0"});
  EXPECT_EQ(outside.exit_code, 1);
  EXPECT_THAT(outside.err, StartsWith("headwise: INVALID_ARGUMENT: "));
  EXPECT_EQ(std::count(outside.err.begin(), outside.err.end(), '\n'), 1);
  const CommandResult absent =
      server_.Headwise({"load", "m", "--checkpoint", "data/minilm", "--layer", "77"});
  EXPECT_THAT(absent.err, StartsWith("headwise: NOT_FOUND: "));
}

TEST_F(Commands, ReducedLayersSayWhatTheyLose) {
  for (const std::string dtype : {"bf16", "int8"}) {
    ASSERT_EQ(server_
                  .Headwise({"load", "m", "--checkpoint", "data/minilm", "--layer", "0", "--dtype",
                             dtype, "--replace"})
                  .exit_code,
              0);
    const json shown = server_.Headwise({"show", "m", "--json"}).json();
    EXPECT_EQ(shown["dtype"], dtype == "bf16" ? "BF16" : "INT8");
    const json& error = shown["reduced_error"];
    EXPECT_FALSE(error["probe"].get<std::string>().empty());
    EXPECT_GT(error["relative_l2"].get<double>(), 1e-4);
    EXPECT_LT(error["relative_l2"].get<double>(), dtype == "bf16" ? 1e-2 : 5e-2);
    EXPECT_THAT(server_.Headwise({"show", "m"}).out, HasSubstr("against f32"));
  }
}

TEST(CountCommand, GivesTheChaptersNumbersWithoutAServer) {
  const CommandResult count = RunProgram("headwise", {"count", "--width", "512", "--heads", "8",
                                                      "--batch", "2", "--queries", "10", "--json"});
  ASSERT_EQ(count.exit_code, 0) << count.err;
  const json answer = count.json();
  EXPECT_EQ(answer["dk"], json(std::vector<int>(8, 64)));
  EXPECT_EQ(answer["score_shape"], (json{2, 8, 10, 10}));
  std::map<std::string, std::string> values;
  for (const json& entry : answer["counts"]) values[entry["id"]] = entry["value"];
  EXPECT_EQ(values["score_elements"], "1600");
  EXPECT_EQ(values["score_elements_causal"], "880");
  EXPECT_EQ(values["parameters"], "1048576");
  EXPECT_EQ(values["parameters_with_bias"], "1050624");
  EXPECT_EQ(values["macs_dense"], "21176320");
  const CommandResult odd = RunProgram("headwise", {"count", "--width", "512", "--heads", "7"});
  EXPECT_EQ(odd.exit_code, 1);
  EXPECT_THAT(odd.err,
              HasSubstr("width: model width must divide evenly across heads; was 512 for 7"));
}

TEST_F(Commands, LoadTestReportsWhatItMeasured) {
  LoadMinilm();
  const CommandResult closed =
      RunProgram("headwise-load", {"m0", "--server", server_.address(), "--concurrency", "4",
                                   "--duration", "1s", "--lengths", "fixed:10", "--json", "-"});
  ASSERT_EQ(closed.exit_code, 0) << closed.err;
  const json report = closed.json();
  ExpectKeys(report,
             {"layer", "method", "loop", "rate", "concurrency", "lengths", "duration_s",
              "connections", "requests", "errors", "requests_per_s", "tokens_per_s", "latency_us",
              "service_us", "send_delay_us", "queue_us", "compute_us", "generator", "verdict"});
  EXPECT_EQ(report["loop"], "CLOSED");
  EXPECT_GT(report["requests"]["ok"].get<int>(), 10);
  EXPECT_EQ(report["requests"]["failed"], 0);
  const CommandResult open =
      RunProgram("headwise-load", {"m0", "--server", server_.address(), "--rate", "50",
                                   "--duration", "1s", "--lengths", "fixed:10", "--json", "-"});
  ASSERT_EQ(open.exit_code, 0) << open.err;
  EXPECT_EQ(open.json()["loop"], "OPEN");
  EXPECT_EQ(open.json()["requests"]["planned"], 50);
  const CommandResult nobody = RunProgram(
      "headwise-load", {"m0", "--server", "127.0.0.1:1", "--duration", "1s", "--json", "-"});
  EXPECT_EQ(nobody.exit_code, 1);
}

TEST(Demo, LayersOfTheChapterAndTheRealOnesAreServed) {
  ServerProcess server({"--repository", TestDataPath("data"), "--demo"});
  const json list = server.HeadwiseJson({"list"});
  std::vector<std::string> names;
  for (const json& layer : list["layers"]) names.push_back(layer["name"]);
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("minilm", "smollm2", "two-head", "two-head-unequal"));
}

}  // namespace
}  // namespace headwise
