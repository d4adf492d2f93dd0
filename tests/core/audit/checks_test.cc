// SPDX-License-Identifier: Apache-2.0
// The checks of a served layer pass on sound layers, and each fails where its fault is planted.
#include "core/audit/checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/audit/engine_target.h"
#include "core/layer/demo_layers.h"
#include "tests/support/engine_helper.h"
#include "tests/support/golden_layer.h"

namespace headwise {
namespace {

// Passes everything on, with a fault where the test wants one.
class FaultyTarget : public AuditTarget {
 public:
  explicit FaultyTarget(AuditTarget* sound) : sound_(*sound) {}

  absl::StatusOr<Outputs> Forward(const AttentionInput& input, uint32_t outputs) override {
    auto answer = sound_.Forward(input, outputs);
    if (answer.ok() && on_forward) on_forward(input, &*answer);
    return answer;
  }
  absl::StatusOr<std::vector<float>> AblatedY(const AttentionInput& input,
                                              const std::vector<int64_t>& heads) override {
    auto y = sound_.AblatedY(input, heads);
    if (y.ok() && on_ablated) on_ablated(heads, &*y);
    return y;
  }
  absl::StatusOr<std::vector<float>> OtherY(const LayerParts& layer, bool fused, DType dtype,
                                            KernelPath kernel,
                                            const AttentionInput& input) override {
    auto y = sound_.OtherY(layer, fused, dtype, kernel, input);
    if (y.ok() && on_other) on_other({layer, fused, dtype, kernel}, &*y);
    return y;
  }
  std::vector<KernelPath> Kernels() const override { return sound_.Kernels(); }

  struct Other {
    const LayerParts& layer;
    bool fused;
    DType dtype;
    KernelPath kernel;
  };
  std::function<void(const AttentionInput&, Outputs*)> on_forward;
  std::function<void(const std::vector<int64_t>&, std::vector<float>*)> on_ablated;
  std::function<void(const Other&, std::vector<float>*)> on_other;

 private:
  AuditTarget& sound_;
};

class Audited {
 public:
  explicit Audited(const TestLayer& layer, DType dtype = DType::kF32)
      : parts_{layer.spec, layer.matrices},
        engine_(MakeEngine()),
        probe_(AuditProbe(layer.spec)),
        target_(engine_.get(), "m", 1, {}),
        faulty(&target_) {
    Load(engine_.get(), "m", layer, dtype);
    info_ = *engine_->GetLayer("m");
  }

  std::vector<AuditCheck> Check() {
    const auto checks = CheckServedLayer(info_, parts_, probe_, &faulty, {});
    EXPECT_TRUE(checks.ok()) << checks.status();
    return checks.ok() ? *checks : std::vector<AuditCheck>();
  }

 private:
  const LayerParts parts_;
  const std::unique_ptr<Engine> engine_;
  const AttentionInput probe_;
  EngineTarget target_;
  LayerInfo info_;

 public:
  FaultyTarget faulty;
};

std::set<std::string> Failed(const std::vector<AuditCheck>& checks) {
  std::set<std::string> failed;
  for (const AuditCheck& check : checks) {
    if (!check.passed) failed.insert(check.id);
  }
  return failed;
}

void ExpectAllPass(const TestLayer& layer, DType dtype = DType::kF32) {
  const std::vector<AuditCheck> checks = Audited(layer, dtype).Check();
  EXPECT_GE(checks.size(), 12u);
  for (const AuditCheck& check : checks) {
    EXPECT_TRUE(check.passed) << check.id << ": " << check.compared << ": " << check.error << " of "
                              << check.bound;
    EXPECT_FALSE(check.compared.empty());
    EXPECT_FALSE(check.bound_source.empty());
  }
}

TestLayer Grouped(int64_t heads = 4) {
  LayerSpec spec = BasicSpec(16, heads);
  spec.kv_heads = 2;
  spec.mask.causal = true;
  return RandomLayer(spec, 3);
}

TEST(Checks, PassUnderANormOverTheWholeWidth) {
  LayerSpec spec = BasicSpec(16, 4);
  spec.kv_heads = 2;
  spec.qk_norm = QkNormSpec{.span = QkNormSpan::kWidth};
  const TestLayer layer = RandomLayer(spec, 3);
  ExpectAllPass(layer);
  const auto pruned = PruneHeads({layer.spec, layer.matrices}, {0, 1});
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    Audited audited({pruned->spec, pruned->matrices}, dtype);
    std::set<std::string> seen;
    for (const AuditCheck& check : audited.Check()) {
      EXPECT_TRUE(check.passed) << check.id << ": " << check.error << " of " << check.bound;
      seen.insert(check.id);
    }
    EXPECT_TRUE(seen.contains("separate_vs_combined"));
    EXPECT_TRUE(seen.contains("ablated_vs_pruned"));
  }
}

TEST(Checks, PassOnSoundLayers) {
  for (const DemoLayer& demo : DemoLayers()) {
    const LayerSpec spec = *ResolveSpec(demo.spec);
    ExpectAllPass({spec, *UnpackWeights(spec, demo.RoleTensors())});
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    ExpectAllPass(Grouped(), dtype);
  }
}

// A family takes a second, ten under a sanitizer; which of them come is no choice of ours.
TEST(Checks, PassOnEveryFifthFamily) {
  std::set<std::string> seen;
  for (const GoldenLayer& golden : GoldenLayers()) {
    if (!seen.insert(golden.folder).second || seen.size() % 5 != 1) continue;
    SCOPED_TRACE(golden.folder);
    ExpectAllPass(LoadGolden(golden));
  }
}

void Spoil(NamedOutput* output) { output->floats()[0] += 0.5f; }

using Target = FaultyTarget;
using Faults = std::map<std::string, std::function<void(Target*)>>;

// In what the served layer answers.
Faults ServedFaults() {
  Faults faults;
  for (const std::string name : {"q", "k", "v", "scores.0", "p.1", "z", "y"}) {
    const std::string id = "reference_" + name.substr(0, name.find('.'));
    faults[id] = [name](Target* t) {
      t->on_forward = [name](const AttentionInput&, AuditTarget::Outputs* out) {
        if (out->contains(name)) Spoil(&out->at(name));
      };
    };
  }
  faults["shapes"] = [](Target* t) {
    t->on_forward = [](const AttentionInput&, AuditTarget::Outputs* out) {
      if (out->contains("z")) std::swap(out->at("z").shape[0], out->at("z").shape[1]);
    };
  };
  faults["weights_sum_over_keys"] = [](Target* t) {
    t->on_forward = [](const AttentionInput&, AuditTarget::Outputs* out) {  // p transposed
      if (!out->contains("p.0")) return;
      NamedOutput& p = out->at("p.0");
      const int64_t n = p.shape[1];
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) std::swap(p.floats()[i * n + j], p.floats()[j * n + i]);
      }
    };
  };
  faults["contributions_add_up"] = [](Target* t) {
    t->on_forward = [](const AttentionInput&, AuditTarget::Outputs* out) {
      if (!out->contains("contributions")) return;
      NamedOutput& shares = out->at("contributions");
      shares.floats()[shares.shape[2]] += 0.5f;  // of the second head
    };
  };
  faults["batch_independence"] = [](Target* t) {
    t->on_forward = [](const AttentionInput& input, AuditTarget::Outputs* out) {
      if (input.lengths.size() != 1) return;
      float& y = out->at("y").floats()[3];
      y = std::nextafter(y, 100.0f);
    };
  };
  faults["causal_order"] = [](Target* t) {
    t->on_forward = [](const AttentionInput& input, AuditTarget::Outputs* out) {
      const auto* x = static_cast<const float*>(input.x.data);
      if (std::none_of(x, x + input.x.elements(), [](float v) { return std::isnan(v); })) return;
      out->at("y").floats()[0] = std::numeric_limits<float>::quiet_NaN();
    };
  };
  return faults;
}

// In its ablations.
Faults AblationFaults() {
  Faults faults;
  faults["ablate_all"] = [](Target* t) {
    t->on_ablated = [](const std::vector<int64_t>& heads, std::vector<float>* y) {
      if (heads.size() == 4) y->assign(y->size(), 0.0f);  // b_o went with the heads
    };
  };
  faults["ablation_is_contribution"] = [](Target* t) {
    t->on_ablated = [](const std::vector<int64_t>& heads, std::vector<float>* y) {
      if (heads.size() == 1) (*y)[1] += 0.5f;
    };
  };
  return faults;
}

// In the layers that it is compared with, where `which` says so.
std::function<void(Target*)> OtherFault(std::function<bool(const Target::Other&)> which) {
  return [which](Target* t) {
    t->on_other = [which](const Target::Other& call, std::vector<float>* y) {
      if (which(call)) (*y)[2] += 2.0f;
    };
  };
}

Faults OtherFaults(const TestLayer& layer) {
  Faults faults;
  faults["separate_vs_combined"] =
      OtherFault([](const auto& call) { return call.layer.spec.heads == 1; });
  faults["separate_vs_fused"] = OtherFault([](const auto& call) { return call.fused; });
  faults["permuted_heads"] = OtherFault([](const auto& call) {
    return call.layer.spec.heads == 4 && call.layer.spec.head_ids.front() == 3;
  });
  faults["ablated_vs_pruned"] =
      OtherFault([](const auto& call) { return call.layer.spec.heads == 3; });
  faults["permuted_wo_alone"] = OtherFault([&layer](const auto& call) {
    return call.layer.spec.heads == 4 && call.layer.spec.head_ids.front() == 0 &&
           call.layer.matrices.wo != layer.matrices.wo;
  });
  return faults;
}

TEST(Checks, EachFindsItsFault) {
  const TestLayer layer = Grouped();
  Faults faults = ServedFaults();
  faults.merge(AblationFaults());
  faults.merge(OtherFaults(layer));
  std::set<std::string> ids;
  for (const AuditCheck& check : Audited(layer).Check()) {
    ids.insert(check.id);
    if (!absl::StartsWith(check.id, "kernel_")) continue;
    faults[check.id] = OtherFault([id = check.id](const auto& call) {
      const std::string dtype(call.dtype == DType::kI8 ? "int8" : DTypeName(call.dtype));
      const std::string name = absl::StrCat("kernel_", KernelPathName(call.kernel), "_", dtype);
      return call.layer.spec.heads == 4 && absl::EqualsIgnoreCase(name, id);
    });
  }
  for (const std::string& id : ids) EXPECT_TRUE(faults.contains(id)) << id << " has no fault";
  for (const auto& [id, plant] : faults) {
    Audited audited(layer);
    plant(&audited.faulty);
    EXPECT_TRUE(Failed(audited.Check()).contains(id)) << id << " didn't find its fault";
  }
}

TEST(Checks, WhatAForwardRefusesIsTheAnswer) {
  const TestLayer layer = Grouped();
  const auto engine = MakeEngine();
  EngineTarget target(engine.get(), "nobody", 1, {});
  const LayerInfo info{.name = "nobody", .spec = layer.spec};
  const AttentionInput probe = AuditProbe(layer.spec);
  const LayerParts parts{layer.spec, layer.matrices};
  EXPECT_EQ(CheckServedLayer(info, parts, probe, &target, {}).status().code(),
            absl::StatusCode::kNotFound);
  Load(engine.get(), "nobody", layer);
  CheckOptions options;
  options.stop = [] { return true; };
  EXPECT_EQ(CheckServedLayer(info, parts, probe, &target, options).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace headwise
