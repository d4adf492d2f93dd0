// SPDX-License-Identifier: Apache-2.0
// What adds up over requests: requests on parts of an input give the figures of the whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/engine_helper.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 24, kHeads = 4;
const std::vector<int64_t> kLengths = {5, 9, 1, 7, 6, 8, 3, 4, 0, 12};

class AddedSums : public ::testing::Test {
 protected:
  AddedSums() {
    LayerSpec spec = BasicSpec(kWidth, kHeads);
    spec.kv_heads = 2;
    spec.dv = {6, 6, 3, 3};
    Load(engine_.get(), "layer", RandomLayer(spec, 3));
  }
  // Sequences [begin, end).
  AblateRequest Request(size_t begin, size_t end) const {
    int64_t row = 0;
    std::vector<float> x;
    for (size_t s = 0; s < end; ++s) {
      if (s >= begin) {
        x.insert(x.end(), x_.begin() + row * kWidth, x_.begin() + (row + kLengths[s]) * kWidth);
      }
      row += kLengths[s];
    }
    AblateRequest request;
    request.layer = "layer";
    request.input = TestInput(kWidth, x,
                              {kLengths.begin() + static_cast<int64_t>(begin),
                               kLengths.begin() + static_cast<int64_t>(end)})
                        .get();
    request.return_sums = true;
    return request;
  }
  AblateResult Run(AblateRequest request) {
    auto result = AblateNow(engine_.get(), std::move(request));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : AblateResult{};
  }

  const std::vector<float> x_ = RandomFloats(55 * kWidth, 4);
  std::unique_ptr<Engine> engine_ = MakeEngine(2);
};

TEST_F(AddedSums, ChainedPrunePlansAreThePlanOfAll) {
  const auto plan = [](AblateRequest request, std::optional<PruneSums> sums) {
    request.sweep = SweepKind::kPrunePlan;
    request.prune_sums = std::move(sums);
    return request;
  };
  const PrunePlan whole = *Run(plan(Request(0, 10), std::nullopt)).prune_plan;
  PrunePlan chained;
  for (const auto& [begin, end] : std::vector<std::pair<size_t, size_t>>{{0, 3}, {3, 4}, {4, 10}}) {
    chained = *Run(plan(Request(begin, end), std::move(chained.sums))).prune_plan;
    EXPECT_EQ(chained.steps.empty(), end == 3);  // three sequences for four folds
  }
  EXPECT_EQ(chained.order, whole.order);
  ASSERT_EQ(chained.steps.size(), whole.steps.size());
  for (size_t i = 0; i < whole.steps.size(); ++i) {
    const PruneStep &a = chained.steps[i], &b = whole.steps[i];
    EXPECT_EQ(a.dropped, b.dropped);
    EXPECT_EQ(a.flops_saved, b.flops_saved);
    EXPECT_NEAR(*a.errors.ungated, *b.errors.ungated, 1e-9);
    EXPECT_NEAR(*a.errors.gated, *b.errors.gated, 1e-9);
    EXPECT_NEAR(*a.errors.mean_folded, *b.errors.mean_folded, 1e-9);
    EXPECT_NEAR(*a.errors.gated_mean_folded, *b.errors.gated_mean_folded, 1e-9);
    for (size_t g = 0; g < b.gates.size(); ++g) {
      EXPECT_NEAR(a.gates[g].gate, b.gates[g].gate, 1e-9);
    }
  }
  EXPECT_EQ(chained.sums.sequences, 9);
  EXPECT_EQ(chained.sums.queries, 55);
}

TEST_F(AddedSums, PruneSumsMustFit) {
  AblateRequest request = Request(0, 10);
  request.sweep = SweepKind::kPrunePlan;
  request.prune_sums.emplace();
  request.prune_sums->sequences = 1;
  const absl::Status status = AblateNow(engine_.get(), request).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("prune_sums: must be empty or of 4 folds"));
  request.prune_sums.emplace();
  request.folds = 65;
  EXPECT_THAT(std::string(AblateNow(engine_.get(), request).status().message()),
              HasSubstr("folds: must be in [2, 64]; was 65"));
  request.folds = 4;
  request.sweep = SweepKind::kLeaveOneOut;
  EXPECT_TRUE(absl::IsInvalidArgument(AblateNow(engine_.get(), request).status()));
}

TEST_F(AddedSums, MeansAreSumsOverValidTokens) {
  const auto request = [&](size_t begin, size_t end) {
    AblateRequest made = Request(begin, end);
    Intervention mean{.kind = InterventionKind::kMean, .heads = {2, 0}};
    mean.token_begin = 1;
    made.ablations = {{{{.heads = {1}}, mean}}, {}};
    made.return_gram = true;
    return made;
  };
  const AblateResult whole = Run(request(0, 10));
  ASSERT_EQ(whole.ablations[0].means.size(), 2u);
  EXPECT_TRUE(whole.ablations[1].means.empty());
  EXPECT_EQ(whole.ablations[0].means[0].head, 0);
  EXPECT_EQ(whole.ablations[0].means[1].sum.size(), 3u);
  EXPECT_EQ(whole.ablations[0].means[0].tokens, 46);  // all but the first of nine sequences
  const AblateResult first = Run(request(0, 4)), rest = Run(request(4, 10));
  for (size_t h = 0; h < 2; ++h) {
    const HeadMeanSums &w = whole.ablations[0].means[h], &a = first.ablations[0].means[h],
                       &b = rest.ablations[0].means[h];
    EXPECT_EQ(w.tokens, a.tokens + b.tokens);
    for (size_t d = 0; d < w.sum.size(); ++d) EXPECT_NEAR(w.sum[d], a.sum[d] + b.sum[d], 1e-12);
  }
}

TEST_F(AddedSums, CountsAndMeansOfSequences) {
  AblateRequest request = Request(0, 10);
  request.ablations = {{}};
  request.return_means = true;
  const AblateResult result = Run(std::move(request));
  std::map<std::string, const NamedOutput*> outputs;
  for (const NamedOutput& output : result.outputs) outputs[output.name] = &output;
  const auto* tokens = reinterpret_cast<const int64_t*>(outputs.at("tokens")->data.data());
  EXPECT_EQ(std::vector<int64_t>(tokens, tokens + 10), kLengths);
  EXPECT_EQ(outputs.at("z_mean")->shape, (Shape{10, 18}));
  EXPECT_EQ(outputs.at("z_mean")->offsets, (std::vector<int64_t>{0, 6, 12, 15}));
  EXPECT_EQ(outputs.at("z_tokens")->shape, (Shape{10, 4}));
  ForwardRequest forward;
  forward.layer = "layer";
  forward.input = Request(0, 10).input;
  forward.outputs = kOutputZ;
  const auto z = ByName(ForwardNow(engine_.get(), std::move(forward))->outputs).at("z");
  const auto* mean = reinterpret_cast<const double*>(outputs.at("z_mean")->data.data());
  double expected = 0;  // sequence 1: tokens 5 … 13
  for (size_t t = 5; t < 14; ++t) expected += static_cast<double>(z[t * 18 + 13]) / 9;
  EXPECT_NEAR(mean[18 + 13], expected, 1e-7);
  EXPECT_EQ(mean[8 * 18], 0.0);  // no tokens
}

TEST_F(AddedSums, ProgressIsToldStageByStage) {
  AblateRequest request = Request(0, 10);
  request.sweep = SweepKind::kPairs;
  std::mutex mu;
  std::map<std::string, int64_t> most;
  int64_t bytes = 0;
  request.context.progress = [&](const RequestProgress& progress) {
    const std::lock_guard<std::mutex> lock(mu);
    int64_t& done = most[progress.stage];
    done = std::max(done, progress.done);
    bytes = std::max(bytes, progress.bytes);
    EXPECT_LE(progress.done, progress.total);
  };
  Run(std::move(request));
  EXPECT_GT(bytes, 55 * kWidth * 4);
  for (const char* stage : {"queued", "project", "attend", "gram", "intervals"}) {
    EXPECT_TRUE(most.contains(stage)) << stage;
  }
  EXPECT_EQ(most["intervals"], 6);
}

// The token is cancelled from a progress call, in the middle of the intervals.
TEST_F(AddedSums, CancelledBetweenIntervals) {
  AblateRequest request = Request(0, 10);
  request.ablations.assign(1000, {{{.heads = {1}}}});
  request.bootstrap.resamples = 20000;
  auto cancel = std::make_shared<CancelToken>();
  request.context.cancel = cancel;
  std::atomic<int64_t> last{0};
  request.context.progress = [&](const RequestProgress& progress) {
    if (std::string(progress.stage) != "intervals") return;
    cancel->Cancel();
    last = progress.done;
  };
  EXPECT_TRUE(absl::IsCancelled(AblateNow(engine_.get(), std::move(request)).status()));
  EXPECT_GT(last, 0);
  EXPECT_LT(last, 1000);
}

}  // namespace
}  // namespace headwise
