// SPDX-License-Identifier: Apache-2.0
// Statistics against plain sums of their own, and planted truth: what is in a layer is found, what
// isn't is not.
#include "core/analysis/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/analysis/similarity.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

const AnalysisWatch kNobody{[] { return false; }, {}};

// A forward's outputs as an analysis takes them.
class Looked {
 public:
  Looked(const TestLayer& layer, const TestInput& input) : spec_(layer.spec) {
    outputs_ = RunForward(layer, input, kOutputP | kOutputContributions);
    input_ = *ValidateInput(spec_, input.get(), 1000);
    view_.spec = &spec_;
    view_.input = &input_;
    for (size_t s = 0; s < input_.queries.size(); ++s) {
      view_.p.push_back(outputs_.at("p." + std::to_string(s)).data());
    }
    view_.contributions = outputs_.at("contributions").data();
  }
  const AnalysisInput& view() const { return view_; }
  const std::vector<float>& output(const std::string& name) const { return outputs_.at(name); }
  AnalysisResult Analyze(const AnalysisOptions& options = {}) const {
    EXPECT_TRUE(CheckAnalysis(spec_, input_, options).ok());
    return AnalyzeHeads(view_, options, kNobody);
  }

 private:
  const LayerSpec spec_;
  std::map<std::string, std::vector<float>> outputs_;
  ValidInput input_;
  AnalysisInput view_;
};

constexpr int64_t kWidth = 24, kHeads = 4;
const std::vector<int64_t> kLengths = {9, 5, 1, 12, 7, 8, 6, 4, 10};
constexpr int64_t kTokens = 62;

// Sums of one head's statistics, by their definitions, over the rows of a causal layer.
struct PlainSums {
  double entropy = 0, share = 0, self = 0, previous = 0, first = 0, late_rows = 0;
  double distance = 0, induction = 0, copied_rows = 0, js = 0, norm = 0, along = 0;

  // One row: weights on keys 0 … t of the head and of another one, and the tokens so far.
  void AddWeights(const std::vector<double>& p, const std::vector<double>& other,
                  const std::vector<int64_t>& ids) {
    const size_t t = p.size() - 1;
    double mass = 0, other_mass = 0, h = 0, copies = 0, on_copies = 0;
    for (size_t j = 0; j <= t; ++j) {
      mass += p[j];
      other_mass += other[j];
    }
    for (size_t j = 0; j <= t; ++j) {
      const double q = p[j] / mass, o = other[j] / other_mass;
      h -= q * std::log(q);
      distance += q * static_cast<double>(t - j);
      js += 0.5 * (q * std::log2(2 * q / (q + o)) + o * std::log2(2 * o / (q + o)));
      if (j >= 1 && ids[j - 1] == ids[t]) {
        copies += 1;
        on_copies += p[j];
      }
    }
    if (copies > 0) {
      induction += on_copies;
      copied_rows += 1;
    }
    if (t == 0) return;
    entropy += h;
    share += h / std::log(static_cast<double>(t + 1));
    self += p[t];
    previous += p[t - 1];
    first += p[0];
    late_rows += 1;
  }

  // One row's contributions [H, width] and a direction.
  void AddContributions(const float* c, size_t head, const float* direction) {
    double norms[kHeads] = {}, sum = 0;
    for (size_t r = 0; r < kHeads; ++r) {
      for (size_t o = 0; o < kWidth; ++o) {
        const double value = static_cast<double>(c[r * kWidth + o]);
        norms[r] += value * value;
        if (r == head) along += value * static_cast<double>(direction[o]);
      }
      sum += std::sqrt(norms[r]);
    }
    norm += std::sqrt(norms[head]) / sum;
  }
};

PlainSums SumPlainly(const Looked& looked, const AnalysisOptions& options, size_t head) {
  PlainSums sums;
  int64_t begin = 0;
  for (size_t s = 0; s < kLengths.size(); begin += kLengths[s], ++s) {
    const int64_t n = kLengths[s];
    const std::vector<float>& p = looked.output("p." + std::to_string(s));
    for (int64_t t = 0; t < n; ++t) {
      const auto row = [&](size_t r) {
        const auto from = p.begin() + (static_cast<int64_t>(r) * n + t) * n;
        return std::vector<double>(from, from + t + 1);
      };
      const auto ids = options.token_ids.begin() + begin;
      sums.AddWeights(row(head), row(0), {ids, ids + t + 1});
      sums.AddContributions(looked.output("contributions").data() + (begin + t) * kHeads * kWidth,
                            head, options.directions.data() + kWidth);
    }
  }
  return sums;
}

TEST(Analysis, StatisticsAreTheirDefinitions) {
  LayerSpec spec = BasicSpec(kWidth, kHeads);
  spec.mask.causal = true;
  spec.sinks = true;
  const TestLayer layer = RandomLayer(spec, 2);
  const Looked looked(layer, TestInput(kWidth, RandomFloats(kTokens * kWidth, 3, 2.0f), kLengths));
  AnalysisOptions options;
  options.permutations = 19;
  for (int64_t i = 0; i < kTokens; ++i) options.token_ids.push_back((i * i) % 5);
  options.directions = RandomFloats(2 * kWidth, 9);
  const AnalysisResult result = looked.Analyze(options);
  ASSERT_EQ(result.heads.size(), 4u);
  const PlainSums sums = SumPlainly(looked, options, 2);
  const HeadStatistics& found = result.heads[2];
  EXPECT_NEAR(*found.entropy_nats.value, sums.entropy / sums.late_rows, 1e-6);
  EXPECT_NEAR(*found.entropy_share.value, sums.share / sums.late_rows, 1e-6);
  EXPECT_NEAR(*found.self_mass.value, sums.self / sums.late_rows, 1e-6);
  EXPECT_NEAR(*found.previous_token_mass.value, sums.previous / sums.late_rows, 1e-6);
  EXPECT_NEAR(*found.first_token_mass.value, sums.first / sums.late_rows, 1e-6);
  EXPECT_NEAR(*found.mean_distance.value, sums.distance / kTokens, 1e-5);
  EXPECT_NEAR(*found.induction_score.value, sums.induction / sums.copied_rows, 1e-6);
  EXPECT_NEAR(*found.norm_share.value, sums.norm / kTokens, 1e-6);
  EXPECT_NEAR(*found.directions.at(1).value, sums.along / kTokens, 1e-5);
  EXPECT_EQ(result.pairs[1].heads, (std::array<int64_t, 2>{0, 2}));
  EXPECT_NEAR(*result.pairs[1].js_distance.value, std::sqrt(sums.js / kTokens), 1e-5);
  for (const Stat* stat : {&found.entropy_nats, &found.self_mass, &found.norm_share}) {
    ASSERT_TRUE(stat->interval.has_value());
    EXPECT_EQ(stat->interval->method, IntervalMethod::kBca);
    EXPECT_LE(stat->interval->low, *stat->value);
    EXPECT_GE(stat->interval->high, *stat->value);
  }
}

// Debiased CKA by its definition: unbiased HSIC of all tokens, with loops of its own.
TEST(Analysis, CkaIsTheUnbiasedOne) {
  const TestLayer layer = RandomLayer(BasicSpec(kWidth, kHeads), 4);
  const Looked looked(layer, TestInput(kWidth, RandomFloats(30 * kWidth, 5), {20, 10}));
  AnalysisOptions options;
  options.permutations = 9;
  const AnalysisResult result = looked.Analyze(options);
  const size_t n = 30;
  std::vector<std::vector<double>> grams;
  for (size_t r = 0; r < 2; ++r) {
    std::vector<double> gram(n * n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        for (size_t o = 0; o < kWidth && i != j; ++o) {
          gram[i * n + j] +=
              static_cast<double>(looked.output("contributions")[(i * kHeads + r) * kWidth + o]) *
              static_cast<double>(looked.output("contributions")[(j * kHeads + r) * kWidth + o]);
        }
      }
    }
    grams.push_back(gram);
  }
  const auto hsic = [&](const std::vector<double>& k, const std::vector<double>& l) {
    double trace = 0, k_sum = 0, l_sum = 0, both = 0;
    for (size_t i = 0; i < n; ++i) {
      double k_row = 0, l_row = 0;
      for (size_t j = 0; j < n; ++j) {
        trace += k[i * n + j] * l[j * n + i];
        k_row += k[i * n + j];
        l_row += l[i * n + j];
      }
      k_sum += k_row;
      l_sum += l_row;
      both += k_row * l_row;
    }
    return trace + k_sum * l_sum / ((n - 1.0) * (n - 2.0)) - 2.0 * both / (n - 2.0);
  };
  const double expected =
      hsic(grams[0], grams[1]) / std::sqrt(hsic(grams[0], grams[0]) * hsic(grams[1], grams[1]));
  EXPECT_NEAR(*result.pairs[0].cka.value, expected, 1e-5);
}

// An input to CompareContributions whose contributions are drawn, not computed.
struct Drawn {
  Drawn(uint32_t seed, std::vector<int64_t> lengths, int64_t width, int64_t heads) {
    spec = BasicSpec(width * heads, heads);
    spec.d_out = width;
    spec = *ResolveSpec(spec);
    input.queries = std::move(lengths);
    for (const int64_t length : input.queries) input.query_rows += length;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    numbers.resize(static_cast<size_t>(input.query_rows * heads * width));
    for (float& number : numbers) number = normal(random);
    view = {.spec = &spec, .input = &input, .p = {}, .contributions = numbers.data()};
  }
  std::vector<PairSimilarity> Compare(const AnalysisOptions& options) const {
    return CompareContributions(view, SampleTokens(input.queries, options.max_tokens, 1), options,
                                kNobody);
  }
  LayerSpec spec;
  ValidInput input;
  std::vector<float> numbers;
  AnalysisInput view;
};

TEST(Analysis, IndependentHeadsAreSeldomFound) {
  int found = 0;
  double cka = 0.0, count = 0.0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Drawn drawn(seed, {12, 9, 15, 10, 8, 14, 11, 13}, 8, 5);
    AnalysisOptions options;
    options.permutations = 199;
    options.bootstrap.resamples = 100;
    options.seed = seed;
    bool any = false;
    for (const PairSimilarity& pair : drawn.Compare(options)) {
      any |= pair.cka.finding || pair.cosine.finding;
      cka += *pair.cka.value;
      count += 1.0;
    }
    found += any ? 1 : 0;
  }
  // 5 % of 200, and what chance adds to it at 99.9 %.
  EXPECT_LE(found, 21);
  EXPECT_NEAR(cka / count, 0.0, 0.005);
}

TEST(Analysis, PlantedCopiesAreFound) {
  Drawn drawn(3, {12, 9, 15, 10, 8, 14, 11, 13}, 8, 5);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int64_t t = 0; t < drawn.input.query_rows; ++t) {
    for (int64_t o = 0; o < 8; ++o) {
      float* row = drawn.numbers.data() + t * 5 * 8;
      row[4 * 8 + o] = row[1 * 8 + o] + 0.5f * normal(random);
    }
  }
  AnalysisOptions options;
  options.permutations = 199;
  const std::vector<PairSimilarity> pairs = drawn.Compare(options);
  size_t pair = 0;
  for (int s = 1; s < 5; ++s) {
    for (int r = 0; r < s; ++r, ++pair) {
      const bool copy = r == 1 && s == 4;
      EXPECT_EQ(pairs[pair].cka.finding, copy) << r << "," << s;
      EXPECT_EQ(pairs[pair].cosine.finding, copy) << r << "," << s;
      if (!copy) continue;
      EXPECT_GT(*pairs[pair].cka.value, 0.5);
      EXPECT_LT(pairs[pair].cka.interval->low, *pairs[pair].cka.value);
      EXPECT_GT(pairs[pair].cka.interval->high, *pairs[pair].cka.value);
      EXPECT_GT(pairs[pair].cosine.interval->low, 0.5);
    }
  }
}

// A head that looks at the token before, by RoPE-free means: a pair mask leaves nothing else.
TEST(Analysis, PlantedPreviousTokenHeadsAreFound) {
  const TestLayer layer = AverageLayer(4, 2);
  TestInput input(4, RandomFloats(10 * 4, 1));
  std::vector<uint8_t> keep(2 * 10 * 10, 0);
  for (size_t t = 0; t < 10; ++t) {
    keep[t * 10 + (t == 0 ? 0 : t - 1)] = 1;                      // head 0: the token before
    for (size_t j = 0; j <= t; ++j) keep[(10 + t) * 10 + j] = 1;  // head 1: all so far
  }
  input.Keep(MaskForm::kHead, keep);
  const AnalysisResult result = Looked(layer, input).Analyze();
  EXPECT_NEAR(*result.heads[0].previous_token_mass.value, 1.0, 1e-6);
  EXPECT_FALSE(result.heads[0].entropy_nats.value.has_value());  // no row sees two keys
  EXPECT_NEAR(*result.heads[0].mean_distance.value, 0.9, 1e-6);
  EXPECT_NEAR(*result.heads[1].entropy_share.value, 1.0, 1e-6);
  EXPECT_EQ(result.heads[0].self_mass.interval->method, IntervalMethod::kRange);
}

TEST(Analysis, SamplesSayThatTheyAre) {
  const TestLayer layer = RandomLayer(BasicSpec(kWidth, kHeads), 4);
  const Looked looked(layer, TestInput(kWidth, RandomFloats(kTokens * kWidth, 5), kLengths));
  AnalysisOptions options;
  options.permutations = 9;
  EXPECT_FALSE(looked.Analyze(options).sampled);
  options.max_tokens = 20;
  const AnalysisResult result = looked.Analyze(options);
  EXPECT_TRUE(result.sampled);
  EXPECT_EQ(result.tokens_used, 20);
  options.token_ids = {1, 2};
  EXPECT_TRUE(absl::IsInvalidArgument(CheckAnalysis(layer.spec, *looked.view().input, options)));
}

}  // namespace
}  // namespace headwise
