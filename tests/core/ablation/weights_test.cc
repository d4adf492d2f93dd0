// SPDX-License-Identifier: Apache-2.0
// p of ablations: as it was, except where attention is spread evenly or loses edges.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

constexpr int64_t kWidth = 24, kHeads = 4, kTokens = 83;
const std::vector<int64_t> kLengths = {6, 70, 7};

TestLayer MakeLayer(bool sinks) {
  LayerSpec spec = BasicSpec(kWidth, kHeads);
  spec.kv_heads = 2;
  spec.gates = {1.0f, 0.5f, -1.25f, 2.0f};
  spec.sinks = sinks;
  if (!sinks) spec.mask = {.causal = true, .window = 20};
  return RandomLayer(spec, 21);
}

TestInput Input() { return {kWidth, RandomFloats(kTokens * kWidth, 5), kLengths}; }

AblateRequest Request(std::vector<Ablation> ablations) {
  AblateRequest request;
  request.layer = "layer";
  request.input = Input().get();
  request.ablations = std::move(ablations);
  request.return_y = request.return_p = request.return_all_ablation_y = true;
  return request;
}

std::map<std::string, std::vector<float>> Ablated(const TestLayer& layer,
                                                  std::vector<Ablation> ablations) {
  auto engine = MakeEngine(2);
  Load(engine.get(), "layer", layer);
  auto result = AblateNow(engine.get(), Request(std::move(ablations)));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? ByName(result->outputs) : std::map<std::string, std::vector<float>>();
}

std::string P(int ablation, size_t sequence) {
  return absl::StrCat("ablation.", ablation, ".p.", sequence);
}

TEST(AblatedWeights, StayAsTheyWereUnderAllOtherKinds) {
  const TestLayer layer = MakeLayer(/*sinks=*/false);
  const auto outputs = Ablated(
      layer, {{{{.heads = {1, 2}}}}, {{{.kind = InterventionKind::kMean, .heads = {0}}}}, {}});
  const auto plain = RunForward(layer, Input(), kOutputP);
  for (size_t s = 0; s < kLengths.size(); ++s) {
    const std::vector<float>& p = plain.at(absl::StrCat("p.", s));
    EXPECT_TRUE(SameBits(outputs.at(absl::StrCat("p.", s)), p));
    for (const int a : {0, 1, 2}) EXPECT_TRUE(SameBits(outputs.at(P(a, s)), p)) << a;
  }
}

TEST(AblatedWeights, UniformSharesTheRowsOwnMass) {
  for (const bool sinks : {false, true}) {
    const TestLayer layer = MakeLayer(sinks);
    Intervention uniform{.kind = InterventionKind::kUniform, .heads = {1, 3}};
    uniform.sequences = {1};
    uniform.token_begin = 3;
    uniform.token_end = 66;
    const auto outputs = Ablated(layer, {{{uniform}}});
    const auto truth = ReferenceByName(layer, Input());
    for (size_t s = 0; s < kLengths.size(); ++s) {
      std::vector<double> expected = truth.at(absl::StrCat("p.", s));
      const size_t n = static_cast<size_t>(kLengths[s]);
      for (const size_t head : {1u, 3u}) {
        for (size_t t = 3; t < std::min<size_t>(66, n) && s == 1; ++t) {
          double* row = expected.data() + (head * n + t) * n;
          double mass = 0, seen = 0;
          for (size_t j = 0; j < n; ++j) {
            mass += row[j];
            seen += row[j] > 0 ? 1 : 0;
          }
          for (size_t j = 0; j < n; ++j) row[j] = row[j] > 0 ? mass / seen : 0;
        }
      }
      EXPECT_TRUE(AllNear(outputs.at(P(0, s)), expected, 1e-6)) << s << (sinks ? " sinks" : "");
    }
  }
}

TEST(AblatedWeights, KnockoutIsAMaskOfTheEdges) {
  for (const bool sinks : {false, true}) {
    const TestLayer layer = MakeLayer(sinks);
    Intervention knockout{.kind = InterventionKind::kKnockout, .heads = {2}};
    knockout.edges = {{1, 5, 5}, {1, 65, 60}, {1, 65, 64}, {1, 2, 1}, {2, 6, 4}};
    knockout.token_begin = 3;  // leaves the edge of query 2 alone
    const auto outputs = Ablated(layer, {{{knockout}}});
    std::vector<uint8_t> keep;
    std::vector<size_t> begins;
    for (const int64_t n : kLengths) {
      begins.push_back(keep.size());
      keep.insert(keep.end(), static_cast<size_t>(kHeads * n * n), 1);
    }
    for (const Edge& edge : knockout.edges) {
      const size_t s = static_cast<size_t>(edge.sequence);
      if (edge.query < 3) continue;
      keep[begins[s] +
           static_cast<size_t>((2 * kLengths[s] + edge.query) * kLengths[s] + edge.key)] = 0;
    }
    TestInput masked = Input();
    masked.Keep(MaskForm::kHead, keep);
    const auto truth = ReferenceByName(layer, masked);
    for (size_t s = 0; s < kLengths.size(); ++s) {
      EXPECT_TRUE(AllNear(outputs.at(P(0, s)), truth.at(absl::StrCat("p.", s)), 1e-6)) << s;
    }
    EXPECT_TRUE(AllNear(outputs.at("ablation.0.y"), truth.at("y"), 2e-5));
  }
}

TEST(AblatedWeights, CountAgainstTheBound) {
  EngineLimits limits;
  limits.max_output_bytes = 4 * (2 * kTokens * kWidth + kHeads * (36 + 4900 + 49)) + 40'000;
  auto engine = MakeEngine(1, limits);
  Load(engine.get(), "layer", MakeLayer(false));
  AblateRequest request = Request({{{{.heads = {1}}}}});
  EXPECT_TRUE(absl::IsResourceExhausted(AblateNow(engine.get(), request).status()));
  request.return_p = false;
  EXPECT_TRUE(AblateNow(engine.get(), request).ok());
}

}  // namespace
}  // namespace headwise
