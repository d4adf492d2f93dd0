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
#include "tests/support/random_mask.h"
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
    for (const int64_t dv : {1, 7, 16, 20, 33, 64, 66, 96}) {
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
