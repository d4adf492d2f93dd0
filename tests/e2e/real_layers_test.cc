// SPDX-License-Identifier: Apache-2.0
// The main job on real input: trained layers served over gRPC, with the numbers that PyTorch gives.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/process.h"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/stored_layer.h"

namespace headwise {
namespace {

constexpr double kYError = 4e-6;  // of the largest |y|
constexpr double kPError = 5e-6;

struct Model {
  const char* dir;
  std::vector<int64_t> layers;    // that have expected ablations
  std::vector<int64_t> expected;  // that have expected y and p
};
void PrintTo(const Model& model, std::ostream* out) { *out << model.dir; }
const Model kModels[] = {{"minilm", {0, 1, 2, 3, 4, 5}, {0, 3}}, {"smollm2", {0, 12}, {0, 12}}};

class RealLayers : public ::testing::TestWithParam<Model> {
 protected:
  std::string Name(int64_t layer) const { return absl::StrCat(GetParam().dir, ".", layer); }

  void SetUp() override {
    client_ = ConnectTo(server_);
    for (const int64_t layer : GetParam().layers) {
      LoadStored(client_.get(), Name(layer), absl::StrCat("data/", GetParam().dir),
                 absl::StrCat(layer));
    }
  }

  v1::ForwardResponse Forward(const v1::ForwardRequest& request) {
    auto response = client_->Forward(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *std::move(response) : v1::ForwardResponse();
  }

  // One request a sequence.
  std::vector<v1::ForwardRequest> Split(const std::string& name, const StoredInput& input) {
    std::vector<v1::ForwardRequest> requests;
    auto from = input.x.begin();
    for (const int64_t length : input.lengths) {
      const auto to = from + length * input.width;
      requests.push_back(MakeForwardRequest(name, {from, to}, {length}, {v1::Y, v1::P}));
      from = to;
    }
    return requests;
  }

  ServerProcess server_;
  std::unique_ptr<client::Client> client_;
};

TEST_P(RealLayers, ForwardGivesTheExpectedYAndP) {
  for (const int64_t layer : GetParam().expected) {
    const StoredInput input = ReadStoredInput(GetParam().dir, layer);
    const v1::ForwardResponse response =
        Forward(MakeForwardRequest(Name(layer), input.x, input.lengths, {v1::Y, v1::P}));
    const auto expected =
        OpenSafetensors(absl::StrCat("data/", GetParam().dir, "/expected.safetensors"));
    const std::vector<double> y = ReadDoubles(*expected, absl::StrCat("layer", layer, ".y"));
    EXPECT_TRUE(AllNear(TensorFloats(response, "y"), y, kYError * LargestMagnitude(y)));
    for (size_t b = 0; b < input.lengths.size(); ++b) {
      const std::vector<double> p = ReadDoubles(*expected, absl::StrCat("layer", layer, ".p.", b));
      EXPECT_TRUE(AllNear(TensorFloats(response, absl::StrCat("p.", b)), p, kPError));
    }
  }
}

TEST_P(RealLayers, TogetherAloneAndConcurrentlyGiveTheSameBits) {
  const int64_t layer = GetParam().expected.front();
  const StoredInput input = ReadStoredInput(GetParam().dir, layer);
  const v1::ForwardResponse together =
      Forward(MakeForwardRequest(Name(layer), input.x, input.lengths, {v1::Y, v1::P}));
  const std::vector<float> y = TensorFloats(together, "y");
  const std::vector<v1::ForwardRequest> requests = Split(Name(layer), input);
  std::vector<std::vector<float>> alone;
  size_t row = 0;
  for (size_t b = 0; b < requests.size(); ++b) {
    const v1::ForwardResponse response = Forward(requests[b]);
    alone.push_back(TensorFloats(response, "y"));
    const std::vector<float> share(y.begin() + static_cast<int64_t>(row),
                                   y.begin() + static_cast<int64_t>(row + alone.back().size()));
    EXPECT_TRUE(SameBits(alone.back(), share));
    EXPECT_TRUE(
        SameBits(TensorFloats(response, "p.0"), TensorFloats(together, absl::StrCat("p.", b))));
    row += alone.back().size();
  }
  uint32_t most_requests = 0;
  for (int round = 0; round < 50 && most_requests < 2; ++round) {
    std::vector<absl::StatusOr<v1::ForwardResponse>> answers(requests.size(),
                                                             absl::UnknownError("not asked"));
    std::vector<std::thread> threads;
    for (size_t b = 0; b < requests.size(); ++b) {
      threads.emplace_back([&, b] { answers[b] = client_->Forward(requests[b]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t b = 0; b < answers.size(); ++b) {
      ASSERT_TRUE(answers[b].ok()) << answers[b].status();
      EXPECT_TRUE(SameBits(TensorFloats(*answers[b], "y"), alone[b]));
      most_requests = std::max(most_requests, answers[b]->batch_requests());
    }
  }
  EXPECT_GT(most_requests, 1u) << "concurrent requests never shared a pass";
}

void ExpectEffect(const v1::Effect& effect, const nlohmann::json& expected, const std::string& of) {
  const double relative = expected.at("relative_l2");
  EXPECT_NEAR(effect.relative_l2(), relative, 1e-5 * relative) << of;
  EXPECT_NEAR(effect.cosine(), expected.at("cosine").get<double>(), 1e-6) << of;
  EXPECT_NEAR(effect.l2(), expected.at("l2").get<double>(), 1e-5 * expected.at("l2").get<double>())
      << of;
}

void ExpectEffects(const v1::AblateResult& result, const nlohmann::json& expected,
                   const std::string& of) {
  ASSERT_EQ(static_cast<size_t>(result.ablations_size()), expected.size()) << of;
  for (int a = 0; a < result.ablations_size(); ++a) {
    const v1::AblationEffect& effect = result.ablations(a);
    const nlohmann::json& wanted = expected.at(static_cast<size_t>(a));
    const std::string what = absl::StrCat(of, " ablation ", a);
    ExpectEffect(effect.effect(), wanted, what);
    if (!wanted.contains("per_sequence")) continue;
    const nlohmann::json& lists = wanted.at("per_sequence");
    ASSERT_EQ(static_cast<size_t>(effect.per_sequence_size()), lists.at("l2").size()) << what;
    for (int b = 0; b < effect.per_sequence_size(); ++b) {
      const size_t i = static_cast<size_t>(b);
      ExpectEffect(effect.per_sequence(b),
                   {{"l2", lists.at("l2").at(i)},
                    {"relative_l2", lists.at("relative_l2").at(i)},
                    {"cosine", lists.at("cosine").at(i)}},
                   absl::StrCat(what, " sequence ", b));
    }
  }
}

TEST_P(RealLayers, AblationsGiveTheExpectedEffects) {
  std::ifstream file(
      TestDataPath(absl::StrCat("data/", GetParam().dir, "/expected_ablation.json")));
  const nlohmann::json expected = nlohmann::json::parse(file);
  for (const int64_t layer : GetParam().layers) {
    const StoredInput input = ReadStoredInput(GetParam().dir, layer);
    const nlohmann::json& figures = expected.at(absl::StrCat("layer", layer));
    v1::AblateRequest request;
    request.set_layer(Name(layer));
    *request.mutable_input() = MakeForwardRequest(Name(layer), input.x, input.lengths).input();
    request.set_sweep(v1::LEAVE_ONE_OUT);
    auto heads = client_->Ablate(request);
    ASSERT_TRUE(heads.ok()) << heads.status();
    const std::string of = absl::StrCat(Name(layer), " heads");
    EXPECT_NEAR(heads->y_l2(), figures.at("y_l2").get<double>(), 1e-5 * heads->y_l2());
    EXPECT_EQ(heads->forwards(), 1u);
    EXPECT_TRUE(heads->from_gram());
    ExpectEffects(*heads, figures.at("heads"), of);
    if (figures.contains("kv_groups")) {
      request.set_target(v1::GROUPS);
      auto groups = client_->Ablate(request);
      ASSERT_TRUE(groups.ok()) << groups.status();
      ExpectEffects(*groups, figures.at("kv_groups"), absl::StrCat(Name(layer), " groups"));
    }
    if (!figures.contains("pairs")) continue;
    request.clear_sweep();
    request.clear_target();
    for (const nlohmann::json& pair : figures.at("pairs")) {
      v1::Intervention* both = request.add_ablations()->add_interventions();
      both->set_kind(v1::Intervention::ZERO);
      for (const nlohmann::json& head : pair.at("heads")) both->add_heads(head.get<uint32_t>());
    }
    auto pairs = client_->Ablate(request);
    ASSERT_TRUE(pairs.ok()) << pairs.status();
    ExpectEffects(*pairs, figures.at("pairs"), absl::StrCat(Name(layer), " pairs"));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RealLayers, ::testing::ValuesIn(kModels),
                         [](const auto& model) { return std::string(model.param.dir); });

}  // namespace
}  // namespace headwise
