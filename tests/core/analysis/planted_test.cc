// SPDX-License-Identifier: Apache-2.0
// Planted truth, through a layer's own kernels: a previous-token head, a copy of it, a noisy copy
// of another head, and heads that share nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "core/analysis/analysis.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

// x is [position one-hot (kPlaces), content (kContent)].
constexpr int64_t kPlaces = 16, kContent = 16, kWidth = kPlaces + kContent;
constexpr int64_t kHeads = 6, kDk = kPlaces, kDv = 4;
constexpr int64_t kSequences = 12;

size_t At(int64_t row, int64_t column) { return static_cast<size_t>(row * kWidth + column); }

// Head 2 looks at the token before: q(t) = e_t, k(j) = e_{j+1}, large. Head 4 has its weights. Head
// 5 has head 1's values, with noise of `noise` of their size. Heads 0, 1 and 3 are random.
TestLayer Planted(float noise) {
  LayerSpec spec = BasicSpec(kWidth, kHeads);
  spec.dk.assign(kHeads, kDk);
  spec.dv.assign(kHeads, kDv);
  spec.mask.causal = true;
  TestLayer layer = RandomLayer(spec, 31, /*biases=*/false);
  LayerMatrices& m = layer.matrices;
  for (int64_t d = 0; d < kDk; ++d) {
    for (int64_t i = 0; i < kWidth; ++i) {
      m.wq[At(2 * kDk + d, i)] = i == d ? 12.0f : 0.0f;
      m.wk[At(2 * kDk + d, i)] = i == d - 1 ? 12.0f : 0.0f;
    }
  }
  const auto copy = [](std::vector<float>* rows, int64_t from, int64_t to, int64_t count) {
    std::copy_n(rows->begin() + from * count * kWidth, count * kWidth,
                rows->begin() + to * count * kWidth);
  };
  copy(&m.wq, 2, 4, kDk);
  copy(&m.wk, 2, 4, kDk);
  copy(&m.wv, 2, 4, kDv);
  copy(&m.wq, 1, 5, kDk);
  copy(&m.wk, 1, 5, kDk);
  copy(&m.wv, 1, 5, kDv);
  const std::vector<float> extra = RandomFloats(kDv * kWidth, 77, noise / 6.0f);
  for (size_t i = 0; i < extra.size(); ++i) {
    m.wv[static_cast<size_t>(5 * kDv * kWidth) + i] += extra[i];
  }
  for (int64_t o = 0; o < kWidth; ++o) {
    for (int64_t d = 0; d < kDv; ++d) {
      float* row = m.wo.data() + o * kHeads * kDv;
      row[4 * kDv + d] = row[2 * kDv + d];
      row[5 * kDv + d] = row[1 * kDv + d];
    }
  }
  return layer;
}

AnalysisResult Analyze(const TestLayer& layer) {
  std::vector<int64_t> lengths;
  std::vector<float> x;
  for (int64_t s = 0; s < kSequences; ++s) {
    lengths.push_back(9 + s % 6);
    const std::vector<float> content =
        RandomFloats(lengths.back() * kContent, static_cast<uint32_t>(100 + s), 2.0f);
    for (int64_t t = 0; t < lengths.back(); ++t) {
      for (int64_t i = 0; i < kPlaces; ++i) x.push_back(i == t ? 1.0f : 0.0f);
      x.insert(x.end(), content.begin() + t * kContent, content.begin() + (t + 1) * kContent);
    }
  }
  const TestInput input(kWidth, x, lengths);
  const auto outputs = RunForward(layer, input, kOutputP | kOutputContributions);
  const ValidInput valid = *ValidateInput(layer.spec, input.get(), 1000);
  AnalysisInput view{.spec = &layer.spec,
                     .input = &valid,
                     .p = {},
                     .contributions = outputs.at("contributions").data()};
  for (size_t s = 0; s < lengths.size(); ++s) {
    view.p.push_back(outputs.at("p." + std::to_string(s)).data());
  }
  AnalysisOptions options;
  options.permutations = 499;
  return AnalyzeHeads(view, options, {[] { return false; }, {}});
}

const HeadPair& PairOf(const AnalysisResult& result, int64_t a, int64_t b) {
  for (const HeadPair& pair : result.pairs) {
    if (pair.heads == std::array<int64_t, 2>{a, b}) return pair;
  }
  return result.pairs.front();
}

TEST(PlantedHeads, PreviousTokenHeadsAndTheirCopiesAreFound) {
  const AnalysisResult result = Analyze(Planted(/*noise=*/0.0f));
  for (const HeadStatistics& head : result.heads) {
    const bool planted = head.head == 2 || head.head == 4;
    EXPECT_EQ(*head.previous_token_mass.value > 0.99, planted) << head.head;
    // Of a head that sees t tokens alike, the one before has 1 / t of the mass.
    EXPECT_EQ(head.previous_token_mass.interval->high > 0.6, planted) << head.head;
  }
  const HeadPair& copies = PairOf(result, 2, 4);
  EXPECT_NEAR(*copies.js_distance.value, 0.0, 1e-3);
  EXPECT_NEAR(*copies.cka.value, 1.0, 1e-5);
  EXPECT_NEAR(*copies.cosine.value, 1.0, 1e-6);
  EXPECT_TRUE(copies.cka.finding);
  EXPECT_TRUE(copies.cosine.finding);
  const HeadPair& others = PairOf(result, 0, 2);
  EXPECT_GT(others.js_distance.interval->low, 0.3);
}

// The more noise, the less alike; the evidence fades with the effect.
TEST(PlantedHeads, KnownNoiseWeakensACopyAsFarAsItGoes) {
  double before = 1.0001;
  for (const float noise : {0.0f, 0.5f, 1.5f}) {
    const AnalysisResult result = Analyze(Planted(noise));
    const HeadPair& copy = PairOf(result, 1, 5);
    EXPECT_LT(*copy.cosine.value, before) << noise;
    EXPECT_TRUE(copy.cosine.finding) << noise;
    EXPECT_NEAR(*copy.js_distance.value, 0.0, 1e-3);  // the same weights all along
    before = *copy.cosine.value - 0.02;
  }
}

}  // namespace
}  // namespace headwise
