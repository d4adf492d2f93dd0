// SPDX-License-Identifier: Apache-2.0
#include "core/audit/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/audit/bounds.h"
#include "core/audit/checker.h"
#include "core/base/normal.h"
#include "core/engine.h"
#include "core/reference/reference_input.h"

namespace headwise {
namespace {

std::vector<double> Widened(const NamedOutput& output) {
  return {output.floats(), output.floats() + output.data.size() / sizeof(float)};
}

std::vector<double> Widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

void Checker::Add(std::string id, std::string compared, const Deviation& worst, std::string source,
                  double share) {
  checks_.push_back({.id = std::move(id),
                     .compared = std::move(compared),
                     .error = worst.error,
                     .bound = worst.bound,
                     .bound_source = std::move(source),
                     .passed = worst.agrees(share)});
}

Deviation Checker::Between(const std::vector<double>& a, const std::vector<double>& b) const {
  if (a.size() != b.size() || a.size() != right_.y.bound.size()) {
    return CompareElement(1.0, 0.0, 0.0);
  }
  std::vector<double> bound = right_.y.bound;
  for (double& each : bound) each *= 2.0;
  return CompareAll(a, b, bound);
}

absl::Status Checker::Prepare() {
  auto read = ReadReferenceInput(info_.spec, input_);
  if (!read.ok()) return read.status();
  reference_input_ = *std::move(read);
  numbers_ = NumbersOf(info_.dtype);
  matrices_ = std::make_shared<const LayerMatrices>(parts_.matrices);
  const StagedLayer layer(info_.spec, matrices_, {}, numbers_);
  right_ = layer.Run(reference_input_, layer.Project(reference_input_), {.contributions = true});
  auto served = target_->Forward(input_, kOutputY | kOutputZ | kOutputP | kOutputScores | kOutputQ |
                                             kOutputK | kOutputV | kOutputContributions);
  if (!served.ok()) return served.status();
  served_ = *std::move(served);
  auto plain = target_->Forward(input_, kOutputY);
  if (!plain.ok()) return plain.status();
  plain_ = *std::move(plain);
  y_ = Widened(served_.at("y"));
  return absl::OkStatus();
}

// Each head alone, from its own rows of the weights, against all at once.
absl::Status Checker::Projections() {
  std::vector<double> sum(y_.size(), 0.0);
  for (const int64_t id : info_.spec.head_ids) {
    std::vector<int64_t> others = info_.spec.head_ids;
    std::erase(others, id);
    absl::StatusOr<LayerParts> alone = parts_;
    if (!others.empty()) alone = PruneHeads(parts_, others);
    if (!alone.ok()) return alone.status();
    alone->matrices.bo.clear();
    const auto y = target_->OtherY(*alone, false, info_.dtype, KernelPath::kAuto, input_);
    if (!y.ok()) return y.status();
    for (size_t e = 0; e < sum.size() && e < y->size(); ++e) {
      sum[e] += static_cast<double>((*y)[e]);
    }
  }
  const std::vector<float>& bias = parts_.matrices.bo;
  for (size_t e = 0; e < sum.size() && !bias.empty(); ++e) {
    sum[e] += static_cast<double>(bias[e % bias.size()]);
  }
  Add("separate_vs_combined",
      "y of the served layer with the sum of its heads, each computed from its own projections",
      Between(y_, sum), absl::StrCat("twice: ", BoundSource(info_.dtype)));
  return Fused();
}

absl::Status Checker::Fused() {
  if (info_.spec.d_memory != info_.spec.d_model) return absl::OkStatus();
  const auto y = target_->OtherY(parts_, true, info_.dtype, KernelPath::kAuto, input_);
  if (!y.ok()) return y.status();
  Add("separate_vs_fused", "y of the served layer with y of one fused QKV projection",
      Between(y_, Widened(*y)), absl::StrCat("twice: ", BoundSource(info_.dtype)));
  return absl::OkStatus();
}

void Checker::Stages() {
  const auto check = [](const std::string& stage, const std::vector<double>& served,
                        const Bounded& right) {
    const Deviation worst = served.size() == right.value.size()
                                ? CompareAll(served, right.value, right.bound)
                                : CompareElement(1.0, 0.0, 0.0);
    return std::pair(stage, worst);
  };
  const auto add = [this](const std::pair<std::string, Deviation>& stage) {
    Add(absl::StrCat("reference_", stage.first),
        absl::StrCat(stage.first, " of the served layer with the float64 reference"), stage.second,
        BoundSource(info_.dtype));
  };
  add(check("q", Widened(served_.at("q")), right_.q));
  add(check("k", Widened(served_.at("k")), right_.k));
  add(check("v", Widened(served_.at("v")), right_.v));
  for (const bool scores : {true, false}) {
    const std::string name = scores ? "scores" : "p";
    std::pair<std::string, Deviation> worst(name, {});
    for (size_t b = 0; b < right_.p.size(); ++b) {
      const auto found = served_.find(absl::StrCat(name, ".", b));
      const std::vector<double> values =
          found == served_.end() ? std::vector<double>() : Widened(found->second);
      worst.second.Take(check(name, values, scores ? right_.scores[b] : right_.p[b]).second);
    }
    add(worst);
  }
  add(check("z", Widened(served_.at("z")), right_.z));
  add(check("y", y_, right_.y));
}

absl::Status Checker::KernelsAndDTypes() {
  for (const KernelPath kernel : target_->Kernels()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      const auto y = target_->OtherY(parts_, false, dtype, kernel, input_);
      if (absl::IsUnimplemented(y.status())) continue;
      if (!y.ok()) return y.status();
      const StagedLayer layer(info_.spec, matrices_, {}, NumbersOf(dtype));
      const StageTensors right = layer.Run(reference_input_, layer.Project(reference_input_));
      const std::vector<double> values = Widened(*y);
      const Deviation worst = values.size() == right.y.value.size()
                                  ? CompareAll(values, right.y.value, right.y.bound)
                                  : CompareElement(1.0, 0.0, 0.0);
      const std::string name = absl::StrCat(KernelPathName(kernel), " in ",
                                            dtype == DType::kI8 ? "INT8" : DTypeName(dtype));
      Add(absl::StrCat("kernel_",
                       absl::AsciiStrToLower(absl::StrReplaceAll(name, {{" in ", "_"}}))),
          absl::StrCat("y of ", name, " with the float64 reference"), worst, BoundSource(dtype));
    }
  }
  return absl::OkStatus();
}

void Checker::Shapes() {
  const LayerSpec& s = info_.spec;
  const int64_t n = static_cast<int64_t>(reference_input_.positions.size());
  const int64_t m = static_cast<int64_t>(reference_input_.memory_positions.size());
  const bool equal_k = s.equal_key_widths();
  const bool equal_v =
      std::all_of(s.dv.begin(), s.dv.end(), [&](int64_t dv) { return dv == s.dv.front(); });
  const auto heads = [](int64_t rows, int64_t count, int64_t width, bool equal, int64_t sum) {
    return equal ? Shape{rows, count, width} : Shape{rows, sum};
  };
  std::map<std::string, Shape> expected = {
      {"q", heads(n, s.heads, s.dk.front(), equal_k, s.q_width())},
      {"k", heads(m, s.kv_heads, s.dk.front(), equal_k, s.k_width())},
      {"v", heads(m, s.kv_heads, s.dv.front(), equal_v, s.v_width())},
      {"z", heads(n, s.heads, s.dv.front(), equal_v, s.z_width())},
      {"contributions", {n, s.heads, s.d_out}},
      {"y", {n, s.d_out}}};
  for (size_t b = 0; b < reference_input_.lengths.size(); ++b) {
    for (const char* name : {"scores", "p"}) {
      expected[absl::StrCat(name, ".", b)] = {s.heads, reference_input_.lengths[b],
                                              reference_input_.memory_lengths[b]};
    }
  }
  double wrong = 0.0;
  std::vector<std::string> texts;
  for (const auto& [name, shape] : expected) {
    const auto found = served_.find(name);
    const bool fits = found != served_.end() && found->second.shape == shape;
    if (fits) continue;
    wrong += 1.0;
    texts.push_back(absl::StrCat(
        name, " is ", found == served_.end() ? "missing" : ShapeToString(found->second.shape),
        ", not ", ShapeToString(shape)));
  }
  Add("shapes",
      texts.empty() ? "shapes of q, k, v, scores, p, z, contributions and y with the layer's widths"
                    : absl::StrCat("shapes: ", absl::StrJoin(texts, "; ")),
      CompareElement(wrong, 0.0, 0.0), "exact: how many are wrong");
}

// Rows of p add up to 1 over keys (with a sink, to what the sink leaves; hidden rows, to 0).
void Checker::Axes() {
  Deviation worst;
  const int64_t heads = info_.spec.heads;
  for (size_t b = 0; b < right_.p.size(); ++b) {
    const auto found = served_.find(absl::StrCat("p.", b));
    const int64_t keys = reference_input_.memory_lengths[b];
    const int64_t rows = heads * reference_input_.lengths[b];
    if (found == served_.end() ||
        found->second.data.size() != static_cast<size_t>(rows * keys) * sizeof(float)) {
      worst.Take(CompareElement(1.0, 0.0, 0.0));
      continue;
    }
    const float* p = found->second.floats();
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0.0, right = 0.0;
      for (int64_t key = row * keys; key < (row + 1) * keys; ++key) {
        sum += static_cast<double>(p[key]);
        right += right_.p[b].value[static_cast<size_t>(key)];
      }
      // A sink's share is as uncertain as the scores against it.
      double bound = 4.0 * numbers_.store + 3.0 * numbers_.sum * std::sqrt(double(keys));
      for (int64_t key = row * keys; parts_.matrices.sinks.size() > 0 && key < (row + 1) * keys;
           ++key) {
        bound += right_.p[b].bound[static_cast<size_t>(key)];
      }
      worst.Take(CompareElement(sum, right, bound));
    }
  }
  Add("weights_sum_over_keys",
      "sums of p over its last axis, the keys, with 1 less the sink's share", worst,
      "four roundings of a weight, three times the roundoff of the sum times the root of S");
}

AttentionInput AuditProbe(const LayerSpec& spec) {
  const std::vector<int64_t> lengths = {5, 9};
  struct Probe {
    std::vector<float> x, memory;
  };
  auto owned = std::make_shared<Probe>();
  const auto fill = [](int64_t width, uint32_t seed) {
    const std::vector<double> normal = NormalNumbers<double>(14 * width, seed);
    return std::vector<float>(normal.begin(), normal.end());
  };
  owned->x = fill(spec.d_model, 1);
  AttentionInput input;
  input.x = {DType::kF32, {14, spec.d_model}, owned->x.data()};
  input.lengths = lengths;
  if (spec.d_memory != spec.d_model) {
    owned->memory = fill(spec.d_memory, 2);
    input.memory = TensorView{DType::kF32, {14, spec.d_memory}, owned->memory.data()};
    input.memory_lengths = lengths;
  }
  input.owner = owned;
  return input;
}

absl::StatusOr<std::vector<AuditCheck>> CheckServedLayer(const LayerInfo& info,
                                                         const LayerParts& parts,
                                                         const AttentionInput& input,
                                                         AuditTarget* target,
                                                         const CheckOptions& options) {
  Checker checker(info, parts, input, target);
  absl::Status status = checker.Prepare();
  using Step = absl::Status (*)(Checker*);
  constexpr std::pair<const char*, Step> kSteps[] = {
      {"projections", [](Checker* c) { return c->Projections(); }},
      {"reference", [](Checker* c) { return c->Stages(), absl::OkStatus(); }},
      {"kernels", [](Checker* c) { return c->KernelsAndDTypes(); }},
      {"shapes", [](Checker* c) { return c->Shapes(), absl::OkStatus(); }},
      {"axes", [](Checker* c) { return c->Axes(), absl::OkStatus(); }},
      {"permutations", [](Checker* c) { return c->Permutations(); }},
      {"ablations", [](Checker* c) { return c->Ablations(); }},
      {"batch", [](Checker* c) { return c->Batch(); }},
      {"masks", [](Checker* c) { return c->Masks(); }}};
  const int64_t total = std::size(kSteps);
  for (int64_t step = 0; step < total && status.ok(); ++step) {
    if (options.progress) options.progress(kSteps[step].first, step, total);
    if (options.stop && options.stop()) return absl::CancelledError("call: was cancelled");
    status = kSteps[step].second(&checker);
  }
  if (!status.ok()) return status;
  if (options.progress) options.progress("checks", total, total);
  return checker.Take();
}

}  // namespace headwise
