// SPDX-License-Identifier: Apache-2.0
// The engine against the float64 reference: random layers and requests, everything mixed, in each
// dtype and on each kernel path.
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/agreement.h"
#include "tests/support/engine_helper.h"
#include "tests/support/random_mask.h"

namespace headwise {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kI8};

std::vector<float> Tokens(int64_t count, int64_t width, uint32_t seed) {
  return RandomFloats(count * width, seed, 2.0f);
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
    norm.kind = static_cast<NormKind>(pick(0, norm.span == QkNormSpan::kWidth ? 1 : 2));
    norm.epsilon = 0.1;
    if (norm.span == QkNormSpan::kWidth && pick(0, 1) == 0) {
      norm.q_statistic_rows = pick(0, 150);
      norm.k_statistic_rows = pick(0, 150);
    }
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
                    static_cast<int>(spec.qk_norm->span), " statistic of ", spec.q_statistic_rows(),
                    " and ", spec.k_statistic_rows());
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

TEST(ReferenceMixtures, AgreeInEachDType) {
  const std::unique_ptr<Engine> engine = MakeEngine(2);
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t seed =
        1000 * static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed()) + i;
    const Mixture mixture = MakeMixture(seed);
    for (const DType dtype : kDTypes) {
      ASSERT_TRUE(AgreesWithReference(engine.get(), mixture.layer, mixture.input, dtype))
          << DTypeName(dtype) << ", seed " << seed << ": " << Describe(mixture.layer.spec);
    }
  }
}

// The kernels that this machine would not choose by itself answer the same.
TEST(ReferenceMixtures, OtherKernelPaths) {
  const std::unique_ptr<Engine> own = MakeEngine(2);
  for (const KernelPath path : own->available_kernels()) {
    if (path == own->kernel()) continue;
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

}  // namespace
}  // namespace headwise
