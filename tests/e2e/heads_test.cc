// SPDX-License-Identifier: Apache-2.0
// What someone who studies heads does with the built programs: ablate over many files, plan, prune,
// analyse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/process.h"
#include "tests/support/compare.h"
#include "tests/support/stored_layer.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Heads : public ::testing::Test {
 protected:
  Heads() { Run({"load", "m0", "--checkpoint", "data/minilm", "--layer", "0"}); }

  std::vector<std::string> Input() const {
    const std::string file = absl::StrCat(HEADWISE_TEST_DATA, "/data/minilm/inputs.safetensors");
    return {"--input", file + ":layer0.x", "--lengths-from", file + ":lengths"};
  }
  json Run(std::vector<std::string> verb, const std::vector<std::string>& more = {}) const {
    verb.insert(verb.end(), more.begin(), more.end());
    return server_.HeadwiseJson(std::move(verb));
  }
  // y of a forward.
  std::vector<float> Y(const std::string& layer) const {
    const std::string out = dir_.Path(layer + ".safetensors");
    Run({"forward", layer, "--output", out}, Input());
    auto file = SafetensorsFile::Open(out);
    EXPECT_TRUE(file.ok()) << file.status();
    return ReadFloats(**file, "y");
  }
  double RelativeError(const std::vector<float>& y, const std::vector<float>& exact) const {
    double error = 0, all = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      error += std::pow(static_cast<double>(y[i]) - static_cast<double>(exact[i]), 2);
      all += std::pow(static_cast<double>(exact[i]), 2);
    }
    return std::sqrt(error / all);
  }

  ServerProcess server_;
  TempDir dir_;
};

// The stored input in three files gives the figures of the one file.
TEST_F(Heads, ManyFilesAddUp) {
  const auto inputs = OpenSafetensors("data/minilm/inputs.safetensors");
  const std::vector<float> x = ReadFloats(*inputs, "layer0.x");
  const std::vector<int64_t> lengths = ReadIntegers(*inputs, "lengths");
  std::string files, lengths_files;
  size_t sequence = 0, row = 0;
  for (const size_t end : {7u, 8u, 24u}) {
    const size_t first = row;
    for (; sequence < end; ++sequence) row += static_cast<size_t>(lengths[sequence]);
    const std::vector<float> part(x.begin() + static_cast<int64_t>(first * 384),
                                  x.begin() + static_cast<int64_t>(row * 384));
    const std::string file = dir_.Path(absl::StrCat("x", end, ".safetensors"));
    OwnedTensor ids;
    ids.dtype = DType::kI64;
    const size_t begin = end == 7 ? 0 : (end == 8 ? 7 : 8);
    ids.shape = {static_cast<int64_t>(end - begin)};
    ids.data.resize((end - begin) * sizeof(int64_t));
    std::memcpy(ids.data.data(), lengths.data() + begin, ids.data.size());
    const OwnedTensor tensor = FloatTensor({static_cast<int64_t>(row - first), 384}, part);
    ASSERT_TRUE(WriteSafetensors(file, {{"x", tensor.view()}, {"lengths", ids.view()}}).ok());
    absl::StrAppend(&files, files.empty() ? "" : ",", file, ":x");
    absl::StrAppend(&lengths_files, lengths_files.empty() ? "" : ",", file, ":lengths");
  }
  const json whole = Run({"ablate", "m0", "--sweep", "pairs", "--seed", "3"}, Input());
  const json parts = Run({"ablate", "m0", "--sweep", "pairs", "--seed", "3", "--input", files,
                          "--lengths-from", lengths_files});
  EXPECT_EQ(parts["forwards"], 3);
  EXPECT_EQ(parts["scope"], whole["scope"]);
  ASSERT_EQ(parts["ablations"].size(), 66u);
  for (size_t a = 0; a < 66; ++a) {
    const json &p = parts["ablations"][a], &w = whole["ablations"][a];
    for (const char* field : {"l2", "relative_l2", "cosine"}) {
      const double value = w["effect"][field].get<double>();
      EXPECT_NEAR(p["effect"][field].get<double>(), value, 1e-9 * value);
      const double low = w["intervals"][field]["low"].get<double>();
      EXPECT_NEAR(p["intervals"][field]["low"].get<double>(), low, 1e-9 * low);
    }
    EXPECT_NEAR(parts["interactions"][a]["interaction"].get<double>(),
                whole["interactions"][a]["interaction"].get<double>(), 1e-9);
  }
  EXPECT_NEAR(whole["interactions"][0]["relative_l2"].get<double>(),
              whole["ablations"][0]["effect"]["relative_l2"].get<double>(), 1e-12);
}

TEST_F(Heads, PlansPruneAndPrunedLayersAreLayers) {
  const json answer = Run({"ablate", "m0", "--sweep", "prune-plan"}, Input());
  const json& plan = answer["prune_plan"];
  EXPECT_EQ(plan["folds"], 4);
  ASSERT_EQ(plan["steps"].size(), 11u);
  EXPECT_EQ(plan["steps"][0]["parameters_saved"], "49152");
  const std::string file = dir_.Write("plan.json", answer.dump());
  Run({"prune", "m0", "--plan", file, "--heads-left", "8", "--as", "both"});
  std::string dropped;
  for (const json& head : plan["steps"][3]["dropped"]) {
    absl::StrAppend(&dropped, dropped.empty() ? "" : ",", head.get<int>());
  }
  Run({"prune", "m0", "--heads", dropped, "--as", "plain"});
  const std::vector<float> y = Y("m0");
  const double both = RelativeError(Y("both"), y), plain = RelativeError(Y("plain"), y);
  EXPECT_LT(both, 0.9 * plain);
  // On the sequences that it was fitted to it is no worse than held out.
  EXPECT_LE(both, plan["steps"][3]["relative_l2"]["gated_mean_folded"].get<double>());
  // Zero-ablated and pruned are one.
  const json ablated = Run({"ablate", "m0", "--heads", dropped}, Input());
  EXPECT_NEAR(ablated["ablations"][0]["effect"]["relative_l2"].get<double>(), plain, 1e-6);
  const std::string saved = dir_.Path("both.safetensors");
  Run({"save", "both", "--output", saved});
  Run({"load", "again", "--layer-file", saved});
  EXPECT_TRUE(SameBits(Y("again"), Y("both")));
  const json show = Run({"show", "again"});
  EXPECT_EQ(show["head_ids"].size(), 8u);
  const CommandResult gone =
      server_.Headwise({"prune", "again", "--heads", dropped, "--as", "never"});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.err, HasSubstr("INVALID_ARGUMENT: heads: "));
}

TEST_F(Heads, PermutedFusedAndSeparateGiveTheSame) {
  Run({"permute", "m0", "--order", "11,3,5,7,9,1,0,2,4,6,8,10", "--as", "p"});
  Run({"combine", "m0", "--as", "c"});
  Run({"split", "c", "--as", "s"});
  const std::vector<float> y = Y("m0");
  EXPECT_LT(RelativeError(Y("p"), y), 1e-6);
  EXPECT_TRUE(SameBits(Y("c"), y));
  EXPECT_TRUE(SameBits(Y("s"), y));
}

TEST_F(Heads, AnalyzeHasTheDocumentedShape) {
  const json answer = Run({"analyze", "m0", "--permutations", "99"}, Input());
  ASSERT_EQ(answer["heads"].size(), 12u);
  ASSERT_EQ(answer["pairs"].size(), 66u);
  for (const char* key :
       {"head", "entropy_nats", "entropy_share", "self_mass", "previous_token_mass",
        "first_token_mass", "mean_distance", "norm_share", "directions"}) {
    EXPECT_TRUE(answer["heads"][0].contains(key)) << key;
  }
  double share = 0;
  for (const json& head : answer["heads"]) share += head["norm_share"]["value"].get<double>();
  EXPECT_NEAR(share, 1.0, 1e-6);
  EXPECT_EQ(answer["pairs"][0]["heads"], (json{0, 1}));
  EXPECT_EQ(answer["pairs"][0]["cka"]["interval"]["method"], "BCA");
  EXPECT_EQ(answer["permutation_null"]["permutations"], 99);
  EXPECT_EQ(answer["permutation_null"]["sampled"], true);
  EXPECT_EQ(answer["scope"]["n_tokens"], 538);
}

}  // namespace
}  // namespace headwise
