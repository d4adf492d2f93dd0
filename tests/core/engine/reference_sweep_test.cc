// SPDX-License-Identifier: Apache-2.0
// The engine against the float64 reference: shapes around the edges of tiles and blocks, widths,
// groups, masks, and random mixtures of everything.
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/agreement.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

constexpr int64_t kEdges[] = {1,   2,   3,   15,  16,  17,  63,  64, 65,
                              127, 128, 129, 130, 255, 256, 257, 258};

class ReferenceSweep : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = MakeEngine(2).release(); }
  static void TearDownTestSuite() {
    delete engine_;
    engine_ = nullptr;
  }

  static void Expect(const TestLayer& layer, const TestInput& input, const std::string& what) {
    EXPECT_TRUE(AgreesWithReference(engine_, layer, input)) << what;
  }

  static void ExpectInEachDType(const TestLayer& layer, const TestInput& input,
                                const std::string& what) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      EXPECT_TRUE(AgreesWithReference(engine_, layer, input, dtype))
          << DTypeName(dtype) << ", " << what;
    }
  }

  static Engine* engine_;
};

Engine* ReferenceSweep::engine_ = nullptr;

std::vector<float> Tokens(int64_t count, int64_t width, uint32_t seed) {
  return RandomFloats(count * width, seed, 2.0f);
}

TEST_F(ReferenceSweep, SequenceLengths) {
  for (const bool causal : {false, true}) {
    LayerSpec spec = BasicSpec(24, 3);
    spec.mask.causal = causal;
    const TestLayer layer = RandomLayer(spec, 1);
    for (const int64_t length : kEdges) {
      ExpectInEachDType(layer, TestInput(24, Tokens(length, 24, 2)),
                        absl::StrCat("T ", length, causal ? " causal" : ""));
    }
  }
}

TEST_F(ReferenceSweep, QueriesAgainstKeys) {
  LayerSpec spec = BasicSpec(12, 2);
  spec.d_memory = 10;
  const TestLayer layer = RandomLayer(spec, 3);
  for (const int64_t queries : {1, 15, 17, 64, 65, 129}) {
    for (const int64_t keys : {1, 16, 17, 63, 65, 128, 257, 600}) {
      for (const CausalMode causal :
           {CausalMode::kNone, CausalMode::kTopLeft, CausalMode::kBottomRight}) {
        TestInput input(12, Tokens(queries, 12, 4));
        input.Memory(10, Tokens(keys, 10, 5)).Causal(causal);
        Expect(layer, input,
               absl::StrCat("T ", queries, " S ", keys, " causal ", static_cast<int>(causal)));
      }
    }
  }
}

TEST_F(ReferenceSweep, HeadWidths) {
  for (const int64_t dk : {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 80, 96}) {
    for (const int64_t dv : {1, 7, 16, 33, 64, 96}) {
      LayerSpec spec = BasicSpec(20, 2);
      spec.dk = {dk};
      spec.dv = {dv};
      spec.mask.causal = dv % 2 == 0;
      ExpectInEachDType(RandomLayer(spec, 6), TestInput(20, Tokens(37, 20, 7)),
                        absl::StrCat("dk ", dk, " dv ", dv));
    }
  }
}

TEST_F(ReferenceSweep, ModelWidths) {
  for (const int64_t width : {1, 2, 3, 7, 16, 31, 63, 64, 65, 100, 130, 200}) {
    LayerSpec spec = BasicSpec(width, 1);
    spec.dk = {8};
    spec.d_out = width % 5 + 1;
    ExpectInEachDType(RandomLayer(spec, 8), TestInput(width, Tokens(21, width, 9)),
                      absl::StrCat("D ", width));
  }
}

TEST_F(ReferenceSweep, Groups) {
  for (const auto& [heads, groups] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 1}, {4, 2}, {5, 1}, {6, 2}, {6, 3}, {7, 7}, {9, 3}, {16, 4}, {33, 11}}) {
    LayerSpec spec = BasicSpec(16, heads);
    spec.kv_heads = groups;
    spec.dk = {6};
    spec.rope = RopeSpec{};
    spec.rope->layout = RopeLayout::kHalf;
    spec.mask.causal = true;
    Expect(RandomLayer(spec, 10), TestInput(16, Tokens(40, 16, 11), {19, 21}),
           absl::StrCat("H ", heads, " G ", groups));
  }
}

TEST_F(ReferenceSweep, OwnMapsAndUnequalWidths) {
  LayerSpec spec = BasicSpec(16, 5);
  spec.kv_heads = 3;
  spec.query_to_kv = {2, 0, 1, 0, 2};
  spec.head_ids = {9, 4, 2, 0, 7};
  spec.dk = {3, 17, 8, 17, 3};
  spec.dv = {20, 1, 64, 1, 20};
  Expect(RandomLayer(spec, 12), TestInput(16, Tokens(70, 16, 13), {70}), "map and widths");
  spec.scale = -0.3;
  spec.rope = RopeSpec{};
  spec.rope->dims = 2;
  spec.rope->layout = RopeLayout::kInterleaved;
  spec.mask = {true, 9};
  Expect(RandomLayer(spec, 12, false), TestInput(16, Tokens(70, 16, 13), {3, 67}),
         "scale, rope, window");
}

TEST_F(ReferenceSweep, Rope) {
  for (const RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
    for (const int64_t dims : {2, 4, 10, 16}) {
      LayerSpec spec = BasicSpec(16, 2);
      spec.dk = {16};
      spec.rope = RopeSpec{};
      spec.rope->layout = layout;
      spec.rope->dims = dims;
      spec.rope->base = 500.0;
      TestInput input(16, Tokens(6, 16, 14), {4, 2});
      const TestLayer layer = RandomLayer(spec, 15);
      Expect(layer, input, absl::StrCat("dims ", dims));
      Expect(layer, input.Positions({5, 0, 900, 17, 3, 3}), absl::StrCat("positions, dims ", dims));
      input = TestInput(16, Tokens(3, 16, 16), {1, 2});
      input.Memory(16, Tokens(5, 16, 17), {2, 3}).MemoryPositions({7, 8, 100, 50, 0});
      Expect(layer, input, absl::StrCat("memory, dims ", dims));
    }
  }
}

TEST_F(ReferenceSweep, Windows) {
  for (const bool causal : {false, true}) {
    for (const int64_t window : {1, 2, 15, 16, 17, 64, 100, 600}) {
      LayerSpec spec = BasicSpec(8, 2);
      spec.mask = {causal, window};
      ExpectInEachDType(RandomLayer(spec, 18), TestInput(8, Tokens(290, 8, 19), {1, 33, 256}),
                        absl::StrCat("window ", window, causal ? " causal" : ""));
    }
  }
}

// The last rows of a tile may see no key where a causal window meets more queries than keys, while
// those before see keys of a block that neither the first nor the last row reaches.
TEST_F(ReferenceSweep, RowsInTheMiddleOfATileSeeMore) {
  for (const int64_t keys : {520, 530, 560}) {
    for (const int64_t window : {3, 20, 40}) {
      TestInput input(4, Tokens(600, 4, 33));
      input.Memory(4, Tokens(keys, 4, 34)).Causal(CausalMode::kTopLeft).Window(window);
      ExpectInEachDType(RandomLayer(BasicSpec(4, 1), 35), input,
                        absl::StrCat("S ", keys, " window ", window));
    }
  }
}

// Longer than two blocks of keys, so that whole blocks lie outside of what a tile may see.
TEST_F(ReferenceSweep, HiddenBlocksAreSkipped) {
  for (const int64_t window : {1, 40, 255, 256, 257, 700}) {
    for (const CausalMode causal :
         {CausalMode::kNone, CausalMode::kTopLeft, CausalMode::kBottomRight}) {
      const TestLayer layer = RandomLayer(BasicSpec(4, 1), 25);
      const std::string what =
          absl::StrCat("window ", window, " causal ", static_cast<int>(causal));
      TestInput own(4, Tokens(830, 4, 26));
      Expect(layer, own.Causal(causal).Window(window), what);
      TestInput wide(4, Tokens(70, 4, 27));
      wide.Memory(4, Tokens(900, 4, 28)).Causal(causal).Window(window);
      Expect(layer, wide, what + " S 900");
      TestInput tall(4, Tokens(600, 4, 29));
      tall.Memory(4, Tokens(300, 4, 30)).Causal(causal).Window(window);
      Expect(layer, tall, what + " T 600");
    }
  }
}

std::vector<uint8_t> RandomBooleans(int64_t count, uint32_t seed, uint32_t percent) {
  std::mt19937 generator(seed);
  std::vector<uint8_t> values(static_cast<size_t>(count));
  for (uint8_t& value : values) value = generator() % 100 < percent ? 1 : 0;
  return values;
}

// Finite numbers with some -inf among them.
std::vector<float> RandomAdditive(int64_t count, uint32_t seed) {
  std::vector<float> values = RandomFloats(count, seed, 3.0f);
  for (size_t i = seed % 3; i < values.size(); i += 3) {
    values[i] = -std::numeric_limits<float>::infinity();
  }
  return values;
}

int64_t MaskElements(MaskForm form, int64_t heads, const std::vector<int64_t>& queries,
                     const std::vector<int64_t>& keys) {
  int64_t count = 0;
  for (size_t b = 0; b < queries.size(); ++b) {
    if (form == MaskForm::kKey) count += keys[b];
    if (form == MaskForm::kPair) count += queries[b] * keys[b];
    if (form == MaskForm::kHead) count += heads * queries[b] * keys[b];
  }
  return count;
}

TEST_F(ReferenceSweep, UserMasks) {
  const std::vector<int64_t> lengths = {17, 1, 130, 3};
  for (const bool causal : {false, true}) {
    LayerSpec spec = BasicSpec(12, 3);
    spec.mask.causal = causal;
    const TestLayer layer = RandomLayer(spec, 20);
    for (const MaskForm form : {MaskForm::kKey, MaskForm::kPair, MaskForm::kHead}) {
      const int64_t count = MaskElements(form, 3, lengths, lengths);
      const std::string what =
          absl::StrCat("form ", static_cast<int>(form), causal ? " causal" : "");
      for (const uint32_t percent : {3u, 50u, 97u}) {
        TestInput input(12, Tokens(151, 12, 21), lengths);
        Expect(layer, input.Keep(form, RandomBooleans(count, percent, percent)), what + " keep");
        Expect(layer, input.Drop(form, RandomBooleans(count, percent + 1, percent)),
               what + " drop");
        Expect(layer, input.Additive(form, RandomAdditive(count, percent)), what + " additive");
      }
    }
  }
}

TEST_F(ReferenceSweep, LargeScores) {
  LayerSpec spec = BasicSpec(8, 2);
  spec.scale = 40.0;
  Expect(RandomLayer(spec, 22), TestInput(8, Tokens(100, 8, 23)), "scale 40");
  spec.scale = 0.0;
  Expect(RandomLayer(spec, 22), TestInput(8, Tokens(100, 8, 23)), "scale 0");
}

// What sits between projections and weights, in random mixtures.
void AddRandomSettings(std::mt19937* generator, LayerSpec* spec) {
  const auto pick = [generator](int64_t low, int64_t high) {
    return low + static_cast<int64_t>((*generator)() % static_cast<uint32_t>(high - low + 1));
  };
  if (pick(0, 4) == 0) spec->softcap = 2.0;
  if (pick(0, 4) == 0) spec->clip = 1.5;
  if (pick(0, 4) == 0) spec->sinks = true;
  if (pick(0, 4) == 0) {
    for (int64_t r = 0; r < spec->heads; ++r) {
      spec->gates.push_back(0.5f * static_cast<float>(pick(0, 2)));
    }
  }
  const int64_t bias = pick(0, 5);
  if (bias < 2) {
    PositionBiasSpec& position = spec->position_bias.emplace();
    if (bias == 0) {
      position.kind = PositionBiasKind::kT5Buckets;
      position.buckets = 8;
      position.max_distance = 20;
      position.bidirectional = pick(0, 1) == 0;
    } else {
      position.kind = PositionBiasKind::kAlibi;
      for (int64_t r = 0; r < spec->heads; ++r) {
        position.slopes.push_back(0.03f * static_cast<float>(r + 1));
      }
      position.scaled = pick(0, 1) == 0;
      position.rounded_to_bf16 = pick(0, 2) == 0;
    }
  }
  const bool equal = spec->equal_widths() && spec->dk.front() >= 8;
  if (equal && pick(0, 3) == 0) {
    QkNormSpec& norm = spec->qk_norm.emplace();
    norm.span = static_cast<QkNormSpan>(pick(0, 2));
    norm.kind =
        norm.span == QkNormSpan::kWidth ? QkNormKind::kRms : static_cast<QkNormKind>(pick(0, 2));
    norm.epsilon = 0.1;
  }
}

// The settings of a layer, for failures.
std::string Describe(const LayerSpec& spec) {
  std::string text = absl::StrCat("D ", spec.d_model, " H ", spec.heads, " G ", spec.kv_heads);
  if (spec.softcap.has_value()) text += " softcap";
  if (spec.clip.has_value()) text += " clip";
  if (spec.sinks) text += " sinks";
  if (!spec.gates.empty()) text += " gates";
  if (spec.rope.has_value()) text += " rope";
  if (spec.mask.causal) text += " causal";
  if (spec.mask.window.has_value()) absl::StrAppend(&text, " window ", *spec.mask.window);
  if (spec.qk_norm.has_value()) {
    absl::StrAppend(&text, " norm kind ", static_cast<int>(spec.qk_norm->kind), " span ",
                    static_cast<int>(spec.qk_norm->span));
  }
  if (spec.position_bias.has_value()) {
    const PositionBiasSpec& bias = *spec.position_bias;
    absl::StrAppend(&text, " bias kind ", static_cast<int>(bias.kind), bias.scaled ? " scaled" : "",
                    bias.rounded_to_bf16 ? " rounded" : "", bias.bidirectional ? " both" : "");
  }
  return text;
}

// A random layer and request; `seed` decides all of it.
struct Mixture {
  TestLayer layer;
  TestInput input;
};

LayerSpec RandomSpec(std::mt19937* generator) {
  const auto pick = [generator](int64_t low, int64_t high) {
    return low + static_cast<int64_t>((*generator)() % static_cast<uint32_t>(high - low + 1));
  };
  LayerSpec spec = BasicSpec(pick(1, 40), pick(1, 6));
  spec.kv_heads = pick(1, spec.heads);
  for (int64_t r = 0; r < spec.heads; ++r) {
    spec.query_to_kv.push_back(r < spec.kv_heads ? r : pick(0, spec.kv_heads - 1));
  }
  const bool equal = pick(0, 1) == 0;
  std::vector<int64_t> dk, dv;
  for (int64_t group = 0; group < spec.kv_heads; ++group) {
    dk.push_back(equal && group > 0 ? dk[0] : pick(2, 40));
    dv.push_back(equal && group > 0 ? dv[0] : pick(1, 40));
  }
  for (const int64_t group : spec.query_to_kv) {
    spec.dk.push_back(dk[static_cast<size_t>(group)]);
    spec.dv.push_back(dv[static_cast<size_t>(group)]);
  }
  spec.d_out = pick(1, 40);
  if (pick(0, 2) == 0) {
    spec.rope = RopeSpec{};
    spec.rope->layout = pick(0, 1) == 0 ? RopeLayout::kHalf : RopeLayout::kInterleaved;
    spec.rope->dims = 2;
  }
  spec.mask.causal = pick(0, 1) == 0;
  if (pick(0, 2) == 0) spec.mask.window = pick(1, 50);
  return spec;
}

Mixture MakeMixture(uint32_t seed) {
  std::mt19937 generator(seed);
  const auto pick = [&generator](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(generator() % static_cast<uint32_t>(high - low + 1));
  };
  LayerSpec spec = RandomSpec(&generator);
  AddRandomSettings(&generator, &spec);
  const bool cross = pick(0, 2) == 0;
  if (cross) spec.d_memory = pick(1, 40);
  std::vector<int64_t> queries, keys;
  int64_t n = 0, m = 0;
  for (int64_t b = pick(1, 5); b > 0; --b) {
    queries.push_back(pick(0, 3) == 0 ? pick(0, 2) : pick(1, 140));
    keys.push_back(cross ? pick(0, 140) : queries.back());
    n += queries.back();
    m += keys.back();
  }
  Mixture mixture{RandomLayer(spec, seed, pick(0, 1) == 0),
                  TestInput(spec.d_model, Tokens(n, spec.d_model, seed + 1), queries)};
  if (cross) {
    mixture.input.Memory(spec.d_memory, Tokens(m, spec.d_memory, seed + 2), keys);
    mixture.input.Causal(static_cast<CausalMode>(pick(1, 3)));
  }
  if (pick(0, 3) == 0) mixture.input.Window(pick(1, 60));
  const auto form = static_cast<MaskForm>(pick(1, 3));
  const int64_t count = MaskElements(form, spec.heads, queries, keys);
  switch (pick(0, 4)) {
    case 0:
      mixture.input.Keep(form, RandomBooleans(count, seed, 70));
      break;
    case 1:
      mixture.input.Drop(form, RandomBooleans(count, seed, 20));
      break;
    case 2:
      mixture.input.Additive(form, RandomAdditive(count, seed));
      break;
    default:
      break;
  }
  return mixture;
}

TEST_F(ReferenceSweep, RandomMixtures) {
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t seed =
        1000 * static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed()) + i;
    const Mixture mixture = MakeMixture(seed);
    ExpectInEachDType(mixture.layer, mixture.input,
                      absl::StrCat("seed ", seed, ": ", Describe(mixture.layer.spec)));
    if (HasFailure()) break;
  }
}

// The kernels that this machine would not choose by itself answer the same.
TEST_F(ReferenceSweep, OtherKernelPaths) {
  for (const KernelPath path : engine_->available_kernels()) {
    if (path == engine_->kernel()) continue;
    const std::unique_ptr<Engine> engine = MakeEngine(2, {}, path);
    LayerSpec narrow = BasicSpec(1, 2);
    narrow.dk = {1};
    for (const int64_t length : {1, 3, 17, 65, 257}) {
      EXPECT_TRUE(AgreesWithReference(engine.get(), RandomLayer(narrow, 31),
                                      TestInput(1, Tokens(length, 1, 32))))
          << KernelPathName(path) << ", T " << length;
    }
    for (uint32_t seed = 0; seed < 12; ++seed) {
      const Mixture mixture = MakeMixture(seed);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
        EXPECT_TRUE(AgreesWithReference(engine.get(), mixture.layer, mixture.input, dtype))
            << KernelPathName(path) << ", " << DTypeName(dtype) << ", seed " << seed;
      }
    }
  }
}

// Small integers, one visible key a row: everything but softmax is exact, and so is softmax.
TEST_F(ReferenceSweep, ExactIntegers) {
  for (const int64_t length : {1, 2, 16, 17, 64, 65, 130, 257}) {
    for (const int64_t width : {1, 3, 16, 20}) {
      LayerSpec spec = BasicSpec(2 * width, 2);
      spec.scale = 1.0;
      TestLayer layer = RandomLayer(spec, 24, false);
      for (std::vector<float>* matrix :
           {&layer.matrices.wq, &layer.matrices.wk, &layer.matrices.wv, &layer.matrices.wo}) {
        for (size_t i = 0; i < matrix->size(); ++i) {
          (*matrix)[i] = static_cast<float>(static_cast<int>(i * 7 % 5) - 2);
        }
      }
      std::vector<float> x(static_cast<size_t>(length * 2 * width));
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(static_cast<int>(i * 5 % 7) - 3);
      std::vector<uint8_t> keep(static_cast<size_t>(length * length), 0);
      for (int64_t t = 0; t < length; ++t) {
        keep[static_cast<size_t>(t * length + t * 3 % length)] = 1;
      }
      TestInput input(2 * width, x);
      input.Keep(MaskForm::kPair, keep);
      Load(engine_, "layer", layer);
      const auto result = ForwardNow(engine_, MakeForward("layer", input, kAllOutputs));
      ASSERT_TRUE(result.ok()) << result.status();
      const auto expected = ReferenceByName(layer, input);
      for (const auto& [name, values] : ByName(result->outputs)) {
        EXPECT_TRUE(AllNear(values, expected.at(name), 0.0))
            << name << ", T " << length << ", dk " << width;
      }
    }
  }
}

}  // namespace
}  // namespace headwise
