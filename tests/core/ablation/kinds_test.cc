// SPDX-License-Identifier: Apache-2.0
// Every kind of intervention against the float64 reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "core/ablation/source.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 24, kHeads = 4, kDv = 6;
const std::vector<int64_t> kLengths = {7, 12, 12, 70};
constexpr int64_t kTokens = 101;

size_t At(int64_t i) { return static_cast<size_t>(i); }

// A layer with everything that replaced heads could lose: groups, gates, biases, a window or sinks.
TestLayer MakeLayer(bool sinks) {
  LayerSpec spec = BasicSpec(kWidth, kHeads);
  spec.kv_heads = 2;
  spec.gates = {1.0f, 0.5f, -1.25f, 2.0f};
  spec.sinks = sinks;
  if (sinks) {
    spec.position_bias = PositionBiasSpec{.slopes = {0.1f, 0.2f, 0.05f, 0.4f}};
  } else {
    spec.mask = {.causal = true, .window = 20};
  }
  return RandomLayer(spec, 11);
}

TestInput MakeInput(bool masked) {
  TestInput input(kWidth, RandomFloats(kTokens * kWidth, 5), kLengths);
  if (masked) {
    std::vector<uint8_t> keep(kTokens, 1);
    keep[5] = keep[6] = keep[17] = 0;  // the first sequence's and the second's last ones
    input.Keep(MaskForm::kKey, keep);
  }
  return input;
}

int64_t FirstRow(int64_t sequence) {
  int64_t row = 0;
  for (int64_t s = 0; s < sequence; ++s) row += kLengths[At(s)];
  return row;
}

// y and relative_l2 of replaced heads, straight from the definition.
class Truth {
 public:
  Truth(const TestLayer& layer, const TestInput& input)
      : layer_(layer), plain_(ReferenceByName(layer, input)), z_(plain_.at("z")) {}

  const std::vector<double>& plain(const std::string& name) const { return plain_.at(name); }

  // z of a head at a row; `value(row, sequence, token, d)`.
  using Value = std::function<double(int64_t, int64_t, int64_t, int64_t)>;
  void Replace(int64_t head, const Value& value, const std::vector<int64_t>& sequences,
               int64_t begin, int64_t end) {
    for (const int64_t s : sequences) {
      for (int64_t t = begin; t < std::min(end, kLengths[At(s)]); ++t) {
        for (int64_t d = 0; d < kDv; ++d) {
          const int64_t row = FirstRow(s) + t;
          z_[At((row * kHeads + head) * kDv + d)] = value(row, s, t, d);
        }
      }
    }
  }

  double z(int64_t row, int64_t head, int64_t d) const {
    return plain_.at("z")[At((row * kHeads + head) * kDv + d)];
  }

  std::vector<double> Y() const {
    std::vector<double> y;
    for (int64_t row = 0; row < kTokens; ++row) {
      for (int64_t o = 0; o < kWidth; ++o) {
        double sum = static_cast<double>(layer_.matrices.bo[At(o)]);
        for (int64_t i = 0; i < kWidth; ++i) {
          sum += z_[At(row * kWidth + i)] *
                 static_cast<double>(layer_.matrices.wo[At(o * kWidth + i)]);
        }
        y.push_back(sum);
      }
    }
    return y;
  }

 private:
  const TestLayer& layer_;
  std::map<std::string, std::vector<double>> plain_;
  std::vector<double> z_;
};

struct Expected {
  double l2 = 0.0, relative_l2 = 0.0, cosine = 0.0;
};

Expected EffectOf(const std::vector<double>& y, const std::vector<double>& other) {
  double yy = 0.0, oo = 0.0, yo = 0.0, dd = 0.0;
  for (size_t i = 0; i < y.size(); ++i) {
    yy += y[i] * y[i];
    oo += other[i] * other[i];
    yo += y[i] * other[i];
    dd += (y[i] - other[i]) * (y[i] - other[i]);
  }
  return {std::sqrt(dd), std::sqrt(dd / yy), yo / std::sqrt(yy * oo)};
}

AblateResult Ablated(const TestLayer& layer, const TestInput& input,
                     std::vector<Ablation> ablations) {
  auto engine = MakeEngine(2);
  Load(engine.get(), "layer", layer);
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  request.ablations = std::move(ablations);
  request.return_y = request.return_all_ablation_y = true;
  auto result = AblateNow(engine.get(), std::move(request));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : AblateResult{};
}

// Ablation `a` of the answer is the truth: outputs and figures.
void ExpectTruth(const AblateResult& result, size_t a, const Truth& truth) {
  ASSERT_LT(a, result.ablations.size());
  const std::vector<double> expected = truth.Y();
  const auto outputs = ByName(result.outputs);
  EXPECT_TRUE(AllNear(outputs.at("ablation." + std::to_string(a) + ".y"), expected, 2e-5,
                      {kTokens, kWidth}))
      << "ablation " << a;
  const Expected effect = EffectOf(truth.plain("y"), expected);
  const Effect& pooled = result.ablations[a].pooled;
  EXPECT_NEAR(*pooled.l2, effect.l2, 1e-5 * effect.l2 + 1e-5) << "ablation " << a;
  EXPECT_NEAR(*pooled.relative_l2, effect.relative_l2, 1e-6) << "ablation " << a;
  EXPECT_NEAR(*pooled.cosine, effect.cosine, 1e-6) << "ablation " << a;
}

Intervention Of(InterventionKind kind, std::vector<int64_t> heads) {
  Intervention intervention;
  intervention.kind = kind;
  intervention.heads = std::move(heads);
  return intervention;
}

TensorView ViewOf(const std::vector<float>& values, Shape shape) {
  return {DType::kF32, std::move(shape), values.data()};
}

class Kinds : public ::testing::TestWithParam<bool> {
 protected:
  Kinds() : layer_(MakeLayer(GetParam())), input_(MakeInput(GetParam())), truth_(layer_, input_) {}
  const std::vector<int64_t> all_ = {0, 1, 2, 3};
  const TestLayer layer_;
  const TestInput input_;
  Truth truth_;
};

TEST_P(Kinds, Mean) {
  Intervention mean = Of(InterventionKind::kMean, {1, 3});
  mean.token_begin = 1;
  mean.token_end = 9;
  mean.sequences = {0, 1, 3};
  const AblateResult result = Ablated(layer_, input_, {{{mean}}});
  for (const int64_t head : mean.heads) {
    std::vector<double> sum(kDv, 0.0);
    double count = 0.0;
    for (const int64_t s : mean.sequences) {
      for (int64_t t = 1; t < std::min<int64_t>(9, kLengths[At(s)]); ++t) {
        const int64_t row = FirstRow(s) + t;
        if (GetParam() && (row == 5 || row == 6 || row == 17)) continue;  // padding
        for (int64_t d = 0; d < kDv; ++d) sum[At(d)] += truth_.z(row, head, d);
        count += 1.0;
      }
    }
    truth_.Replace(
        head, [&](int64_t, int64_t, int64_t, int64_t d) { return sum[At(d)] / count; },
        mean.sequences, 1, 9);
  }
  ExpectTruth(result, 0, truth_);
  EXPECT_TRUE(result.from_gram);
}

TEST_P(Kinds, MeanAndReplaceFromTheCaller) {
  const std::vector<float> mean = RandomFloats(2 * kDv, 21),
                           rows = RandomFloats(kTokens * kWidth, 22);
  Intervention given = Of(InterventionKind::kMean, {2, 0});  // axis order, whatever the list's
  given.tensor = ViewOf(mean, {2 * kDv});
  Intervention replace = Of(InterventionKind::kReplace, {1});  // rows of all heads
  replace.tensor = ViewOf(rows, {kTokens, kWidth});
  const AblateResult result = Ablated(layer_, input_, {{{given, replace}}});
  truth_.Replace(0, [&](int64_t, int64_t, int64_t, int64_t d) { return mean[At(d)]; }, all_, 0, 99);
  truth_.Replace(
      2, [&](int64_t, int64_t, int64_t, int64_t d) { return mean[At(kDv + d)]; }, all_, 0, 99);
  truth_.Replace(
      1, [&](int64_t row, int64_t, int64_t, int64_t d) { return rows[At(row * kWidth + kDv + d)]; },
      all_, 0, 99);
  ExpectTruth(result, 0, truth_);
}

TEST_P(Kinds, ResampleIsTheMeanOverDraws) {
  Intervention resample = Of(InterventionKind::kResample, {0, 2});
  resample.token_end = 7;
  resample.seed = 9;
  resample.draws = 3;
  const AblateResult result = Ablated(layer_, input_, {{{resample}}});
  double mean = 0.0;
  for (int64_t draw = 0; draw < 3; ++draw) {
    const auto partners = DrawPartners(kLengths, {{}, 0, 7}, 9, draw);
    ASSERT_TRUE(partners.ok());
    Truth truth(layer_, input_);
    for (const int64_t head : {0, 2}) {
      truth.Replace(
          head,
          [&](int64_t, int64_t s, int64_t t, int64_t d) {
            EXPECT_NE((*partners)[At(s)], s);
            return truth.z(FirstRow((*partners)[At(s)]) + t, head, d);
          },
          all_, 0, 7);
    }
    if (draw == 0) {
      EXPECT_TRUE(AllNear(ByName(result.outputs).at("ablation.0.y"), truth.Y(), 2e-5));
    }
    mean += EffectOf(truth.plain("y"), truth.Y()).relative_l2 / 3.0;
  }
  EXPECT_NEAR(*result.ablations[0].pooled.relative_l2, mean, 1e-6);
}

TEST_P(Kinds, Donor) {
  std::vector<int64_t> lengths = {9, 12, 13, 71};
  const TestInput donor(kWidth, RandomFloats(105 * kWidth, 31), lengths);
  const TestInput single(kWidth, RandomFloats(70 * kWidth, 32));
  Intervention four = Of(InterventionKind::kDonor, {3});
  four.donor = std::make_shared<const AttentionInput>(donor.get());
  Intervention one = Of(InterventionKind::kDonor, {0});
  one.donor = std::make_shared<const AttentionInput>(single.get());
  const AblateResult result = Ablated(layer_, input_, {{{four, one}}});
  const std::vector<double> z4 = ReferenceByName(layer_, donor).at("z");
  const std::vector<double> z1 = ReferenceByName(layer_, single).at("z");
  truth_.Replace(
      3,
      [&](int64_t, int64_t s, int64_t t, int64_t d) {
        int64_t row = t;
        for (int64_t i = 0; i < s; ++i) row += lengths[At(i)];
        return z4[At((row * kHeads + 3) * kDv + d)];
      },
      all_, 0, 99);
  truth_.Replace(
      0, [&](int64_t, int64_t, int64_t t, int64_t d) { return z1[At(t * kWidth + d)]; }, all_, 0,
      99);
  ExpectTruth(result, 0, truth_);
  EXPECT_FALSE(result.from_gram);
  EXPECT_EQ(result.forwards, 3);
}

TEST_P(Kinds, UniformSpreadsTheRowsMass) {
  Intervention uniform = Of(InterventionKind::kUniform, {1, 2});
  uniform.token_begin = 2;
  const AblateResult result = Ablated(layer_, input_, {{{uniform}}});
  for (const int64_t head : {1, 2}) {
    truth_.Replace(
        head,
        [&](int64_t, int64_t s, int64_t t, int64_t d) {
          const int64_t keys = kLengths[At(s)];
          const std::vector<double>& p = truth_.plain("p." + std::to_string(s));
          const std::vector<double>& v = truth_.plain("v");
          double mass = 0.0, seen = 0.0, sum = 0.0;
          for (int64_t key = 0; key < keys; ++key) {
            const double weight = p[At((head * keys + t) * keys + key)];
            if (weight == 0.0) continue;  // hidden
            mass += weight;
            seen += 1.0;
            sum += v[At(((FirstRow(s) + key) * 2 + head / 2) * kDv + d)];
          }
          const double gate = static_cast<double>(layer_.spec.gates[At(head)]);
          return seen == 0.0 ? 0.0 : gate * mass * sum / seen;
        },
        all_, 2, 99);
  }
  ExpectTruth(result, 0, truth_);
  EXPECT_FALSE(result.from_gram);
}

TEST_P(Kinds, KnockoutTakesTheSoftmaxAnew) {
  Intervention knockout = Of(InterventionKind::kKnockout, {1});
  knockout.edges = {{3, 65, 64}, {0, 3, 1}, {3, 65, 65}, {3, 2, 0},
                    {3, 2, 1},   {3, 2, 2}, {1, 0, 0}};
  const AblateResult result = Ablated(layer_, input_, {{{knockout}}});
  // The reference with a mask of heads that hides the same.
  std::vector<uint8_t> keep;
  for (int64_t s = 0; s < 4; ++s) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t t = 0; t < kLengths[At(s)]; ++t) {
        for (int64_t key = 0; key < kLengths[At(s)]; ++key) {
          const int64_t row = FirstRow(s) + key;
          bool visible = !(GetParam() && (row == 5 || row == 6 || row == 17));
          for (const Edge& edge : knockout.edges) {
            if (head == 1 && edge == Edge{s, t, key}) visible = false;
          }
          keep.push_back(visible ? 1 : 0);
        }
      }
    }
  }
  TestInput masked(kWidth, RandomFloats(kTokens * kWidth, 5), kLengths);
  masked.Keep(MaskForm::kHead, keep);
  const std::vector<double> z = ReferenceByName(layer_, masked).at("z");
  truth_.Replace(
      1,
      [&](int64_t row, int64_t, int64_t, int64_t d) { return z[At((row * kHeads + 1) * kDv + d)]; },
      all_, 0, 99);
  ExpectTruth(result, 0, truth_);
}

TEST_P(Kinds, MixturesOverlapAndTheLaterOneActs) {
  Intervention scale = Of(InterventionKind::kScale, {0, 1});
  scale.scale = 3.0;
  const std::vector<float> mean(kDv, 0.25f);
  Intervention later = Of(InterventionKind::kMean, {1});
  later.tensor = ViewOf(mean, {kDv});
  later.token_begin = 4;
  later.sequences = {3};
  Intervention last = Of(InterventionKind::kZero, {1});
  last.token_begin = 60;
  const AblateResult result = Ablated(layer_, input_, {{{scale, later, last}}, {{}}});
  for (const int64_t head : {0, 1}) {
    truth_.Replace(
        head,
        [&](int64_t row, int64_t, int64_t, int64_t d) { return 3.0 * truth_.z(row, head, d); },
        all_, 0, 99);
  }
  truth_.Replace(1, [](int64_t, int64_t, int64_t, int64_t) { return 0.25; }, {3}, 4, 99);
  truth_.Replace(1, [](int64_t, int64_t, int64_t, int64_t) { return 0.0; }, {3}, 60, 99);
  ExpectTruth(result, 0, truth_);
  const auto outputs = ByName(result.outputs);
  EXPECT_EQ(outputs.at("ablation.1.y"), outputs.at("y"));
}

INSTANTIATE_TEST_SUITE_P(Layers, Kinds, ::testing::Values(false, true));

// Case A9 for every source: what is replaced is gone, infinities too.
TEST(AblateKinds, ReplacedHeadsLeaveNoInfinity) {
  TestLayer layer = IdentityLayer(4, 2);
  layer.spec.mask.causal = true;
  layer.matrices.wv[0] = 3e38f;
  const TestInput input(4, {1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4});
  const std::vector<float> numbers = {5, 5};
  Intervention mean = Of(InterventionKind::kMean, {0});
  mean.tensor = ViewOf(numbers, {2});
  Intervention knockout = Of(InterventionKind::kKnockout, {0});
  knockout.edges = {{0, 1, 1}, {0, 2, 1}, {0, 2, 2}};
  const AblateResult result =
      Ablated(layer, input, {{{Of(InterventionKind::kUniform, {0})}}, {{mean}}, {{knockout}}});
  const auto outputs = ByName(result.outputs);
  EXPECT_EQ(outputs.at("ablation.0.y")[0], 3e38f);
  for (const char* name : {"ablation.1.y", "ablation.2.y"}) {
    for (const float value : outputs.at(name)) EXPECT_TRUE(std::isfinite(value));
  }
  EXPECT_FALSE(result.ablations[1].pooled.l2.has_value());
}

TEST(AblateKinds, RefusalsNameTheRuleAndTheValue) {
  const LayerSpec spec = *ResolveSpec(BasicSpec(kWidth, kHeads));
  const auto status = [&](const Intervention& intervention, std::vector<int64_t> lengths) {
    AblateRequest request;
    request.ablations = {{{intervention}}};
    return PlanAblations(spec, lengths, request, 100).status();
  };
  const absl::Status longest = status(Of(InterventionKind::kResample, {0}), {3, 9, 3});
  EXPECT_TRUE(absl::IsInvalidArgument(longest));
  EXPECT_THAT(std::string(longest.message()), HasSubstr("sequence 1"));
  const std::vector<float> five(5, 0.0f);
  Intervention mean = Of(InterventionKind::kMean, {0});
  mean.tensor = ViewOf(five, {5});
  EXPECT_THAT(std::string(status(mean, {3}).message()), HasSubstr("was [5]"));
  Intervention knockout = Of(InterventionKind::kKnockout, {0});
  EXPECT_THAT(std::string(status(knockout, {3}).message()), HasSubstr("edges"));
  knockout.edges = {{0, 3, 0}};
  EXPECT_THAT(std::string(status(knockout, {3}).message()), HasSubstr("was 0,3,0"));
  EXPECT_THAT(std::string(status(Of(InterventionKind::kDonor, {0}), {3}).message()),
              HasSubstr("donor"));
  EXPECT_THAT(std::string(status(Of(InterventionKind::kReplace, {0}), {3}).message()),
              HasSubstr("tensor"));
  auto engine = MakeEngine(1);
  Load(engine.get(), "layer", RandomLayer(BasicSpec(kWidth, kHeads), 1));
  const TestInput input(kWidth, RandomFloats(3 * kWidth, 5)),
      brief(kWidth, RandomFloats(kWidth, 5));
  AblateRequest request;
  request.layer = "layer";
  request.input = input.get();
  Intervention donor = Of(InterventionKind::kDonor, {0});
  donor.donor = std::make_shared<const AttentionInput>(brief.get());
  request.ablations = {{{donor}}};
  const absl::Status refused = AblateNow(engine.get(), std::move(request)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at least 3"));
}

// Equal lengths: a derangement, and every one of them comes up.
TEST(AblateKinds, PartnersAreADerangement) {
  std::map<std::vector<int64_t>, int> seen;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const auto partners = DrawPartners({5, 5, 5, 5}, {{}, 0, 5}, seed, 0);
    ASSERT_TRUE(partners.ok());
    std::set<int64_t> distinct(partners->begin(), partners->end());
    EXPECT_EQ(distinct.size(), 4u);
    for (size_t s = 0; s < 4; ++s) EXPECT_NE((*partners)[s], static_cast<int64_t>(s));
    ++seen[*partners];
  }
  EXPECT_EQ(seen.size(), 9u);
  EXPECT_EQ(*DrawPartners({5, 5, 5, 5}, {{}, 0, 5}, 1, 0),
            *DrawPartners({5, 5, 5, 5}, {{}, 0, 5}, 1, 0));
}

}  // namespace
}  // namespace headwise
