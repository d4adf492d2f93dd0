// SPDX-License-Identifier: Apache-2.0
// What a sequence gets doesn't depend on its company, its batch, or the number of threads: bit for
// bit.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

using Outputs = std::map<std::string, std::vector<float>>;

constexpr int64_t kWidth = 48;
constexpr int64_t kLengths[] = {1, 7, 16, 33, 64, 65, 130, 2, 300, 5};

TestLayer CausalLayer() {
  LayerSpec spec = BasicSpec(kWidth, 6);
  spec.kv_heads = 2;
  spec.dk = {12};
  spec.mask.causal = true;
  spec.rope = RopeSpec{};
  spec.rope->layout = RopeLayout::kHalf;
  return RandomLayer(spec, 40);
}

// With heads whose v has four features beyond a whole vector.
TestLayer WideHeadLayer() {
  LayerSpec spec = CausalLayer().spec;
  spec.dk = {20};
  return RandomLayer(spec, 42);
}

// With 70 and 40 rows of pruned heads in the norm of q and k.
TestLayer PrunedLayer() {
  LayerSpec spec = CausalLayer().spec;
  spec.qk_norm = QkNormSpec{NormKind::kRms, QkNormSpan::kWidth, 1e-6, 70, 40};
  return RandomLayer(spec, 41);
}

std::vector<float> Tokens(size_t index) {
  return RandomFloats(kLengths[index] * kWidth, static_cast<uint32_t>(50 + index), 2.0f);
}

// Each sequence in a request of its own.
std::vector<ForwardRequest> SingleRequests() {
  std::vector<ForwardRequest> requests;
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    requests.push_back(MakeForward("layer", TestInput(kWidth, Tokens(i)), kAllOutputs));
  }
  return requests;
}

// The sequences of the named indices in one request.
TestInput Packed(const std::vector<size_t>& order) {
  std::vector<float> x;
  std::vector<int64_t> lengths;
  for (const size_t index : order) {
    const std::vector<float> tokens = Tokens(index);
    x.insert(x.end(), tokens.begin(), tokens.end());
    lengths.push_back(kLengths[index]);
  }
  return TestInput(kWidth, x, lengths);
}

// Answers of each sequence alone, on one thread.
std::vector<Outputs> Baseline(const TestLayer& layer) {
  const std::unique_ptr<Engine> engine = MakeEngine(1);
  Load(engine.get(), "layer", layer);
  std::vector<Outputs> outputs;
  for (ForwardRequest& request : SingleRequests()) {
    const auto result = ForwardNow(engine.get(), std::move(request));
    EXPECT_TRUE(result.ok()) << result.status();
    outputs.push_back(ByName(result->outputs));
  }
  return outputs;
}

void ExpectSame(const Outputs& actual, const Outputs& expected, const std::string& what) {
  EXPECT_EQ(actual.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name;
    EXPECT_TRUE(SameBits(found->second, values)) << what << ", " << name;
  }
}

// The baseline's outputs as those of one request with the sequences in this order.
Outputs Joined(const std::vector<Outputs>& baseline, const std::vector<size_t>& order) {
  Outputs joined;
  for (size_t place = 0; place < order.size(); ++place) {
    for (const auto& [name, values] : baseline[order[place]]) {
      const bool per_sequence = name == "p.0" || name == "scores.0";
      const std::string own =
          per_sequence ? absl::StrCat(name.substr(0, name.size() - 1), place) : name;
      joined[own].insert(joined[own].end(), values.begin(), values.end());
    }
  }
  return joined;
}

TEST(Independence, CompanyAndThreads) {
  const TestLayer layer = CausalLayer();
  const std::vector<Outputs> baseline = Baseline(layer);
  for (const int64_t threads : {1, 2, 3, 4}) {
    for (const int64_t most : {int64_t{0}, int64_t{1}, int64_t{3}}) {
      EngineLimits limits;
      limits.max_batch_requests = most;
      const std::unique_ptr<Engine> engine = MakeEngine(threads, limits);
      Load(engine.get(), "layer", layer);
      const auto answers = ForwardTogether(engine.get(), SingleRequests());
      for (size_t i = 0; i < answers.size(); ++i) {
        ASSERT_TRUE(answers[i].ok()) << answers[i].status();
        const int64_t together = answers[i]->pass.batch_requests;
        EXPECT_EQ(together, most == 0 ? 10 : std::min(most, together));
        ExpectSame(ByName(answers[i]->outputs), baseline[i],
                   absl::StrCat("threads ", threads, ", at most ", most, ", sequence ", i));
      }
    }
  }
}

TEST(Independence, OrderAndSplit) {
  const TestLayer layer = CausalLayer();
  const std::vector<Outputs> baseline = Baseline(layer);
  const std::unique_ptr<Engine> engine = MakeEngine(2);
  Load(engine.get(), "layer", layer);
  for (const std::vector<size_t>& order : std::vector<std::vector<size_t>>{
           {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, {8, 0}, {3, 3, 5, 3}}) {
    const auto result = ForwardNow(engine.get(), MakeForward("layer", Packed(order), kAllOutputs));
    ASSERT_TRUE(result.ok()) << result.status();
    ExpectSame(ByName(result->outputs), Joined(baseline, order), "one request");
  }
}

void ExpectIndependentOnEachPath(const TestLayer& layer) {
  for (const KernelPath path : MakeEngine()->available_kernels()) {
    const std::unique_ptr<Engine> one = MakeEngine(1, {}, path), two = MakeEngine(2, {}, path);
    Load(one.get(), "layer", layer);
    Load(two.get(), "layer", layer);
    std::vector<Outputs> alone;
    for (ForwardRequest& request : SingleRequests()) {
      alone.push_back(ByName(ForwardNow(one.get(), std::move(request))->outputs));
    }
    const auto answers = ForwardTogether(two.get(), SingleRequests());
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_TRUE(answers[i].ok()) << answers[i].status();
      ExpectSame(ByName(answers[i]->outputs), alone[i],
                 absl::StrCat(KernelPathName(path), ", sequence ", i));
    }
  }
}

TEST(Independence, KernelPathsEachByThemselves) { ExpectIndependentOnEachPath(CausalLayer()); }

TEST(Independence, WithFeaturesBesideWholeVectors) { ExpectIndependentOnEachPath(WideHeadLayer()); }

TEST(Independence, UnderANormWithAStatistic) { ExpectIndependentOnEachPath(PrunedLayer()); }

TEST(Independence, RepeatedRunsAreTheSame) {
  const std::unique_ptr<Engine> engine = MakeEngine(2);
  Load(engine.get(), "layer", CausalLayer());
  const TestInput input = Packed({8, 6, 4});
  const auto first = ForwardNow(engine.get(), MakeForward("layer", input));
  for (int i = 0; i < 30; ++i) {
    const auto again = ForwardNow(engine.get(), MakeForward("layer", input));
    ASSERT_TRUE(SameBits(ByName(again->outputs)["y"], ByName(first->outputs)["y"]));
  }
}

// NaN and infinity at the last token leave the earlier rows of a causal sequence as they were.
void ExpectNothingReachesBack(const TestLayer& layer, DType dtype) {
  const std::unique_ptr<Engine> engine = MakeEngine(2);
  Load(engine.get(), "layer", layer, dtype);
  for (const int64_t length : {2, 16, 17, 64, 65, 129, 257}) {
    std::vector<float> x = RandomFloats(length * kWidth, 60, 2.0f);
    const auto healthy = ForwardNow(engine.get(), MakeForward("layer", TestInput(kWidth, x)));
    const std::vector<float> expected = ByName(healthy->outputs)["y"];
    for (const float poison :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
      std::fill(x.end() - kWidth, x.end(), poison);
      const auto result = ForwardNow(engine.get(), MakeForward("layer", TestInput(kWidth, x)));
      ASSERT_TRUE(result.ok()) << result.status();
      const std::vector<float> y = ByName(result->outputs)["y"];
      const size_t earlier = static_cast<size_t>((length - 1) * kWidth);
      EXPECT_TRUE(SameBits(absl::MakeConstSpan(y).subspan(0, earlier),
                           absl::MakeConstSpan(expected).subspan(0, earlier)))
          << "T " << length << ", " << poison;
    }
  }
}

TEST(Independence, LastTokenDoesNotReachBack) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectNothingReachesBack(CausalLayer(), dtype);
    ExpectNothingReachesBack(WideHeadLayer(), dtype);
  }
}

// A NaN that a row may see is not lost either.
void ExpectVisibleNan(const TestLayer& layer, DType dtype) {
  const std::unique_ptr<Engine> engine = MakeEngine(2);
  Load(engine.get(), "layer", layer, dtype);
  for (const int64_t at : {0, 5, 63, 64, 100}) {
    std::vector<float> x = RandomFloats(130 * kWidth, 61, 2.0f);
    x[static_cast<size_t>(at * kWidth)] = std::numeric_limits<float>::quiet_NaN();
    const auto result = ForwardNow(engine.get(), MakeForward("layer", TestInput(kWidth, x)));
    const std::vector<float> y = ByName(result->outputs)["y"];
    for (int64_t token = 0; token < 130; ++token) {
      const float value = y[static_cast<size_t>(token * kWidth)];
      EXPECT_EQ(std::isnan(value), token >= at) << "NaN at " << at << ", row " << token;
    }
  }
}

TEST(Independence, VisibleNanStaysNan) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectVisibleNan(CausalLayer(), dtype);
    ExpectVisibleNan(WideHeadLayer(), dtype);
  }
}

}  // namespace
}  // namespace headwise
