// SPDX-License-Identifier: Apache-2.0
// What someone who studies heads does with the built programs: plan, prune, derive, analyse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/stored_layer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Derivation;

class Heads : public ::testing::Test {
 protected:
  Heads() { Run({"load", "m0", "--checkpoint", "data/minilm", "--layer", "0"}); }

  // Of minilm, or of smollm2 for layers whose name begins with s.
  std::vector<std::string> Input(const std::string& layer = "m") const {
    const bool smollm2 = layer[0] == 's';
    const std::string file =
        TestDataPath(absl::StrCat("data/", smollm2 ? "smollm2" : "minilm", "/inputs.safetensors"));
    return {"--input", file + (smollm2 ? ":layer12.x" : ":layer0.x"), "--lengths-from",
            file + ":lengths"};
  }
  json Run(std::vector<std::string> verb, const std::vector<std::string>& more = {}) const {
    verb.insert(verb.end(), more.begin(), more.end());
    return server_.HeadwiseJson(std::move(verb));
  }
  // y of a forward.
  std::vector<float> Y(const std::string& layer) const {
    const std::string out = dir_.Path(layer + ".safetensors");
    Run({"forward", layer, "--output", out}, Input(layer));
    return Tensor(out, "y");
  }
  // y with heads ablated.
  std::vector<float> AblatedY(const std::string& layer, const std::string& heads) const {
    const std::string out = dir_.Path(layer + "-ablated.safetensors");
    Run({"ablate", layer, "--heads", heads, "--output", out}, Input(layer));
    return Tensor(out, "ablation.0.y");
  }
  static std::vector<float> Tensor(const std::string& path, const std::string& name) {
    auto file = SafetensorsFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return ReadFloats(**file, name);
  }
  void ExpectALayer(const std::string& base, const std::string& name,
                    const Derivation& derivation) const;
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

// One way to derive a layer, and what its output is to be.
struct Derivation {
  std::vector<std::string> verb;  // without --as
  std::string ablated;  // heads whose ablation gives the same output; empty: the plain one
  double bound = 1e-6;  // relative, on that
  std::string dtype = "F32";
  double again = 1e-6;  // of the largest |y|: pruned once more against ablated
};

void Heads::ExpectALayer(const std::string& base, const std::string& name,
                         const Derivation& derivation) const {
  std::vector<std::string> verb = derivation.verb;
  verb.insert(verb.end(), {"--as", name});
  Run(verb);
  const json show = Run({"show", name});
  EXPECT_EQ(show["dtype"], derivation.dtype);
  const std::vector<float> plain =
      derivation.ablated.empty() ? Y(base) : AblatedY(base, derivation.ablated);
  EXPECT_LT(RelativeError(Y(name), plain), derivation.bound);
  // By the old ids: ablated, and pruned again.
  const double bound = derivation.again * LargestMagnitude(Widened(Y(name)));
  const std::string again = name + "-again";
  Run({"prune", name, "--heads", "5,8", "--as", again});
  EXPECT_TRUE(AllNear(Y(again), Widened(AblatedY(name, "5,8")), bound));
  EXPECT_EQ(Run({"show", again})["head_ids"].size(), show["head_ids"].size() - 2);
  const CommandResult gone = server_.Headwise({"prune", again, "--heads", "8", "--as", "never"});
  EXPECT_THAT(gone.err, HasSubstr("INVALID_ARGUMENT: heads: "));
  // Through a file.
  const std::string file = dir_.Path(again + ".layer.safetensors");
  const std::string loaded = again + "-loaded";
  Run({"save", again, "--output", file});
  const std::string dtype = derivation.dtype == "F32" ? "f32" : "int8";
  Run({"load", loaded, "--layer-file", file, "--dtype", dtype});
  EXPECT_TRUE(SameBits(Y(loaded), Y(again)));
  EXPECT_EQ(Run({"show", loaded})["head_ids"], Run({"show", again})["head_ids"]);
  EXPECT_TRUE(SameBits(AblatedY(loaded, "6"), AblatedY(again, "6")));
}

// Every derived layer runs, is ablated and pruned again by the old ids, saved and loaded.
TEST_F(Heads, EveryDerivedLayerIsALayer) {
  Run({"load", "s", "--checkpoint", "data/smollm2", "--layer", "12"});
  Run({"load", "m0-int8", "--checkpoint", "data/minilm", "--layer", "0", "--dtype", "int8"});
  const std::map<std::string, std::vector<Derivation>> derivations = {
      {"m0",
       {{{"prune", "m0", "--heads", "0,7"}, "0,7"},
        {{"prune", "m0", "--heads", "0,7", "--gates"}, "0,7"},
        {{"permute", "m0", "--order", "11,3,5,7,9,1,0,2,4,6,8,10"}, ""},
        {{"split", "m0"}, ""},
        {{"combine", "m0"}, ""},
        {{"quantize", "m0"}, "", 3e-2, "INT8", 1e-2}}},
      {"s",
       {{{"prune", "s", "--heads", "0,1,2"}, "0,1,2"},  // a whole group
        {{"prune", "s", "--heads", "0,7"}, "0,7"},
        {{"permute", "s", "--order", "8,0,4,1,5,2,6,3,7"}, ""},
        {{"split", "s"}, ""},
        {{"combine", "s"}, ""},
        // One feature of x is 27 times as large as the median one; what it leaves to the others'
        // 8 bits is coarse.
        {{"quantize", "s"}, "", 0.2, "INT8", 2e-2}}}};
  for (const auto& [base, list] : derivations) {
    for (size_t i = 0; i < list.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(base, " ", list[i].verb[0], " ", i));
      ExpectALayer(base, absl::StrCat(base, "-", i), list[i]);
    }
  }
  EXPECT_EQ(Run({"show", "s-0"})["spec"]["kv_heads"], 2);
  EXPECT_EQ(Run({"show", "s-1"})["spec"]["kv_heads"], 3);
  // Quantised from the numbers that the layer was made from.
  EXPECT_TRUE(SameBits(Y("m0-5"), Y("m0-int8")));
}

// What goes of q and k stays in the norm's statistic, in every derived layer, its file and its
// counts.
TEST_F(Heads, PrunedUnderANormOverTheWholeWidth) {
  LayerSpec spec = BasicSpec(384, 12);
  spec.kv_heads = 4;
  spec.clip = 1.5;
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kWidth};
  const TestLayer layer = RandomLayer(spec, 3);
  const LayerTensors tensors(layer);
  std::vector<std::pair<std::string, TensorView>> stored;
  for (const RoleTensor& tensor : tensors.roles()) {
    stored.emplace_back(TensorRoleName(tensor.role), tensor.view);
  }
  ASSERT_TRUE(WriteSafetensors(dir_.Path("weights.safetensors"), stored).ok());
  const std::string json_spec = dir_.Write(
      "spec.json",
      R"({"d_model":384,"heads":12,"kv_heads":4,"clip":1.5,"orientation":"OUT_IN",)"
      R"("qk_norm":{"kind":"RMS","span":"WIDTH","epsilon":1e-6},"tensors":{"q":"Q_WEIGHT",)"
      R"("k":"K_WEIGHT","v":"V_WEIGHT","o":"O_WEIGHT","q_bias":"Q_BIAS","k_bias":"K_BIAS",)"
      R"("v_bias":"V_BIAS","o_bias":"O_BIAS","q_norm":"Q_NORM","k_norm":"K_NORM"}})");
  Run({"load", "n", "--spec", json_spec, "--weights", dir_.Path("weights.safetensors")});
  ExpectALayer("n", "n-0", {{"prune", "n", "--heads", "0,1,2"}, "0,1,2"});  // a whole group
  ExpectALayer("n-0", "n-1", {{"combine", "n-0"}, ""});
  ExpectALayer("n-0", "n-2", {{"quantize", "n-0"}, "", 5e-2, "INT8", 1e-2});

  const json show = Run({"show", "n-0"});
  EXPECT_EQ(show["spec"]["qk_norm"]["q_statistic_rows"], 96);
  EXPECT_EQ(show["spec"]["qk_norm"]["k_statistic_rows"], 32);
  std::map<std::string, json> shapes;
  for (const json& tensor : show["tensors"]) shapes[tensor["role"]] = tensor["shape"];
  EXPECT_EQ(shapes["Q_STATISTIC"], json({96, 384}));
  EXPECT_EQ(shapes["K_STATISTIC_BIAS"], json({32}));
  const json again = Run({"show", "n-0-again"})["spec"]["qk_norm"];  // without 5 and 8 too
  EXPECT_EQ(again["q_statistic_rows"], 160);
  const CommandResult count = server_.Headwise({"count", "n-0"});
  EXPECT_THAT(count.out, HasSubstr("W_q_statistic"));
  EXPECT_THAT(count.out, HasSubstr("statistic of k"));
  EXPECT_THAT(count.out, HasSubstr("rows of pruned heads in the norm's statistic too"));
}

TEST_F(Heads, AnalyzeHasTheDocumentedShape) {
  const json answer = Run({"analyze", "m0", "--permutations", "99", "--timeout", "120s"}, Input());
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
