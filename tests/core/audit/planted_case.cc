// SPDX-License-Identifier: Apache-2.0
#include "tests/core/audit/planted_case.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/reference/reference_input.h"

namespace headwise {
namespace {

class Maker {
 public:
  Maker(const std::string& mistake, uint32_t seed)
      : mistake_(mistake), seed_(seed), random_(seed * 7919 + 1) {}

  PlantedCase Make() {
    LayerSpec spec = Sizes();
    Settings(&spec);
    PlantedCase made;
    const bool biases = Needs("bias") || Chance(2);
    made.layer = RandomLayer(spec, static_cast<uint32_t>(random_()), biases);
    made.layer.spec.fused_layout = spec.fused_layout;
    for (float& w : made.layer.matrices.wq) w *= 1.5f;
    Input(&made);
    return made;
  }

 private:
  bool Needs(const std::string& part) const { return absl::StrContains(mistake_, part); }
  bool Chance(uint32_t in) { return random_() % in == 0; }
  int64_t Pick(std::vector<int64_t> of) { return of[random_() % of.size()]; }

  LayerSpec Sizes() {
    int64_t heads = Pick({2, 3, 4, 6});
    if (Needs("fused_l5")) heads = Pick({4, 8});
    if (Needs("alibi_slopes")) heads = Pick({3, 6});
    if (Needs("heads_shuffled")) heads = Pick({4, 6});  // of three, any order may be a rolled one
    if (Needs("gqa")) heads = Pick({4, 6});
    const int64_t width = Pick({4, 6, 8});
    LayerSpec spec = BasicSpec(heads * width, heads);
    spec.dk = {width};
    const bool own = Needs("swap") || Needs("fused_l2") || Needs("fused_l5") ||
                     Needs("weights_transposed") || Needs("int8_weight_axis");
    if (Needs("gqa") || (!own && Chance(3))) {
      spec.kv_heads = heads % 2 == 0 && heads > 2 ? 2 : 1;
      if (Needs("gqa_tiled") || Needs("gqa_next")) spec.kv_heads = 2;
    }
    if (Needs("fused")) spec.fused_layout = FusedLayout::kBlocks;
    if (Needs("fused_l1")) {
      spec.fused_layout =
          spec.kv_heads == 0 && Chance(2) ? FusedLayout::kPerHead : FusedLayout::kPerGroup;
    }
    return spec;
  }

  void Settings(LayerSpec* spec) {
    const bool bidirectional = Needs("causal_added") || Needs("pad_");
    spec->mask.causal = Needs("causal_") || Needs("mask_") || Needs("cap_after") || Chance(2);
    if (bidirectional) spec->mask.causal = false;
    if (Needs("window") || Chance(5)) spec->mask.window = Pick({2, 3});
    if (Needs("rope") || (!Needs("alibi") && Chance(2))) {
      spec->rope.emplace();
      spec->rope->layout = Chance(2) ? RopeLayout::kHalf : RopeLayout::kInterleaved;
      spec->rope->dims = Needs("rope_all_dims") ? spec->dk[0] - 2 : spec->dk[0];
      if (Chance(3)) spec->rope->base = 500.0;
    }
    if (Needs("alibi") || (!spec->rope && Chance(3))) {
      spec->position_bias.emplace();
      for (int64_t h = 0; h < spec->heads; ++h) {
        spec->position_bias->slopes.push_back(0.7f / static_cast<float>(h + 1));
      }
    }
    if (Needs("cap_") || Chance(5)) spec->softcap = 1.5;
    spec->sinks = Needs("sink") || (!Needs("softmax") && Chance(5));
    if (Needs("scale_default") || Chance(5)) spec->scale = 0.3;
    if (Needs("softmax_overflow")) spec->softcap.reset();
    if (Needs("prenorm") || seed_ % 4 == 0) {
      spec->pre_norm = PreNormSpec{static_cast<NormKind>(seed_ % 3), 1e-5};
    }
  }

  void Input(PlantedCase* made) {
    PlantedInput& input = made->input;
    const LayerSpec& spec = made->layer.spec;
    const bool pads = Needs("pad_");
    const int64_t sequences = pads ? 3 : Pick({1, 2, 3});
    int64_t n = 0, m = 0;
    for (int64_t b = 0; b < sequences; ++b) {
      input.lengths.push_back(pads ? 4 + 2 * b : Pick({5, 6, 7, 9}));
      n += input.lengths.back();
    }
    const float amplitude = Needs("softmax_overflow") ? 30.0f : 2.0f;
    input.x = RandomFloats(n * spec.d_model, static_cast<uint32_t>(random_()), amplitude);
    if (Needs("causal_alignment") || (Needs("prenorm") && spec.mask.causal && Chance(3))) {
      for (const int64_t length : input.lengths) input.memory_lengths.push_back(length + 3);
      for (const int64_t length : input.memory_lengths) m += length;
      input.memory = RandomFloats(m * spec.d_memory, static_cast<uint32_t>(random_()), 2.0f);
      input.bottom_right = true;
    }
    if (!input.has_memory() && !Needs("reshape_attend") && !Needs("mask_inverted") && Chance(4)) {
      for (int64_t i = 0; i < n; ++i) input.keep.push_back(Chance(4) ? 0 : 1);
    }
  }

  const std::string mistake_;
  const uint32_t seed_;
  std::mt19937 random_;
};

}  // namespace

TestInput PlantedCase::ForEngine() const {
  TestInput made(layer.spec.d_model, input.x, input.lengths);
  if (input.has_memory()) made.Memory(layer.spec.d_memory, input.memory, input.memory_lengths);
  if (input.bottom_right) made.Causal(CausalMode::kBottomRight);
  // Whoever anchors the triangle sets the window beside it.
  if (input.bottom_right && layer.spec.mask.window) made.Window(*layer.spec.mask.window);
  if (!input.keep.empty()) made.Keep(MaskForm::kKey, input.keep);
  return made;
}

AuditCase PlantedCase::Right() const {
  const TestInput made = ForEngine();
  auto read = ReadReferenceInput(layer.spec, made.get());
  CHECK_OK(read);
  return RightCase(layer.spec, std::make_shared<const LayerMatrices>(layer.matrices),
                   std::make_shared<const ReferenceInput>(*std::move(read)));
}

PlantedCase MakePlantedCase(const std::string& mistake, uint32_t seed) {
  return Maker(mistake, seed).Make();
}

std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

TheirTensors Theirs(const Planted& planted, bool all_stages) {
  TheirTensors theirs;
  theirs.y = Doubles(planted.y);
  if (!all_stages) return theirs;
  theirs.q = Doubles(planted.q);
  theirs.k = Doubles(planted.k);
  theirs.v = Doubles(planted.v);
  theirs.z = Doubles(planted.z);
  for (const auto& scores : planted.scores) theirs.scores.push_back(Doubles(scores));
  for (const auto& p : planted.p) theirs.p.push_back(Doubles(p));
  return theirs;
}

bool Names(const SearchResult& result, const std::string& id) {
  return std::any_of(result.explanations.begin(), result.explanations.end(),
                     [&](const AuditExplanation& e) {
                       return e.mistakes.size() == 1 && e.mistakes.front() == id;
                     });
}

std::string Describe(const SearchResult& result) {
  std::vector<std::string> named;
  for (const AuditExplanation& e : result.explanations) {
    named.push_back(absl::StrJoin(e.mistakes, "+"));
  }
  std::string stages;
  for (const StageDeviation& stage : result.stages) {
    absl::StrAppend(&stages, " ", AuditStageName(stage.stage), " ", stage.deviation.error, "/",
                    stage.deviation.bound);
  }
  return absl::StrCat(AuditVerdictName(result.verdict), ": ", absl::StrJoin(named, ", "), ";",
                      stages);
}

}  // namespace headwise
