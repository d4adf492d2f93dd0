// SPDX-License-Identifier: Apache-2.0
#include "core/audit/evaluate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

constexpr size_t kKeptProjections = 6;
constexpr size_t kSampleRows = 4;
constexpr double kCoarse = 50.0;  // bounds, before a case's own are computed
// Share of the rounding's whole effect that may be left where some roundings fell to the other
// side.
constexpr double kLeftOver = 0.1;

double LargestFinite(const std::vector<double>& values) {
  double largest = 0.0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

bool IsCostly(const AuditCase& c) {
  return !c.projection_key.empty() || c.plan.mixes_rows() || c.plan.split != SplitWay::kHeads;
}

std::vector<StageDeviation> Better(std::vector<StageDeviation> a, std::vector<StageDeviation> b) {
  const auto agreeing = [](const std::vector<StageDeviation>& stages) {
    return std::count_if(stages.begin(), stages.end(),
                         [](const StageDeviation& s) { return s.deviation.agrees(); });
  };
  return agreeing(b) > agreeing(a) ? b : a;
}

}  // namespace

// How much of a rounding's effect, theirs and ours together, is left between them: sums of squares.
struct Evaluator::RoundingEffect {
  double left = 0.0, whole = 0.0, bound = 0.0, count = 0.0;

  void Add(double theirs, double ours, double exact, double of_float) {
    left += (theirs - ours) * (theirs - ours);
    whole += (ours - exact) * (ours - exact);
    bound += of_float * of_float;
    count += 1.0;
  }
  bool MayBe() const { return left <= kLeftOver * kLeftOver * whole; }  // whatever the bound
  // `strictly`: an effect that float itself may have is no sign of anything.
  bool Explained(bool strictly) const {
    if (MayBe() && whole > bound) return true;
    return !strictly && left <= bound;
  }
};

const char* AuditStageName(AuditStage stage) {
  constexpr const char* kNames[kAuditStages] = {"q", "k", "v", "scores", "p", "z", "y"};
  return kNames[static_cast<int>(stage)];
}

Evaluator::Evaluator(AuditCase right, const TheirTensors& theirs, DType stated)
    : right_(std::move(right)), theirs_(theirs), stated_(stated), numbers_(NumbersOf(stated)) {
  right_tensors_ = Run(right_, numbers_, {});
  stages_ = Compare(right_tensors_);
  largest_y_ = LargestFinite(right_tensors_.y.value);
  largest_bound_ = LargestFinite(right_tensors_.y.bound);
  right_has_empty_rows_ =
      StagedLayer(right_.spec, right_.matrices, right_.plan).HasEmptyRows(*right_.input);
  for (const EmptyRow form : FormsOf(right_)) {
    if (form == EmptyRow::kZero) continue;
    AuditCase other = right_;
    other.plan.empty_row = form;
    stages_ = Better(std::move(stages_), Compare(Run(other, numbers_, {})));
  }
  ChooseSample();
}

const Projections& Evaluator::Project(const AuditCase& c, const std::optional<Numbers>& numbers) {
  const std::string key = absl::StrCat(
      c.projection_key, numbers.has_value() ? absl::StrCat("bounded ", numbers->sum) : "");
  const auto found = std::find_if(projections_.begin(), projections_.end(),
                                  [&](const auto& entry) { return entry.first == key; });
  if (found != projections_.end()) {
    projections_.splice(projections_.begin(), projections_, found);
  } else {
    projections_.emplace_front(key,
                               StagedLayer(c.spec, c.matrices, c.plan, numbers).Project(*c.input));
    if (projections_.size() > kKeptProjections) projections_.pop_back();
  }
  return projections_.front().second;
}

StageTensors Evaluator::Run(const AuditCase& c, const std::optional<Numbers>& numbers,
                            const std::vector<int64_t>& rows) {
  return StagedLayer(c.spec, c.matrices, c.plan, numbers)
      .Run(*c.input, Project(c, numbers), {.rows = rows, .gates = c.gates});
}

Deviation Evaluator::CompareY(const StageTensors& tensors) const {
  const size_t width = static_cast<size_t>(right_.spec.d_out);
  Deviation worst;
  for (size_t row = 0; row < tensors.y_rows.size(); ++row) {
    const auto from = theirs_.y.begin() + tensors.y_rows[row] * right_.spec.d_out;
    for (size_t o = 0; o < width; ++o) {
      worst.Take(CompareElement(from[static_cast<std::ptrdiff_t>(o)],
                                tensors.y.value[row * width + o],
                                tensors.y.bound[row * width + o]));
    }
  }
  return worst;
}

std::vector<StageDeviation> Evaluator::Compare(const StageTensors& tensors) const {
  std::vector<StageDeviation> stages;
  const auto add = [&](AuditStage stage, const std::vector<double>& theirs, const Bounded& ours) {
    if (theirs.empty()) return;
    if (theirs.size() != ours.value.size()) {
      stages.push_back({stage, CompareElement(1.0, 0.0, 0.0)});
    } else {
      stages.push_back({stage, CompareAll(theirs, ours.value, ours.bound)});
    }
  };
  add(AuditStage::kQ, theirs_.q, tensors.q);
  add(AuditStage::kK, theirs_.k, tensors.k);
  add(AuditStage::kV, theirs_.v, tensors.v);
  for (const AuditStage stage : {AuditStage::kScores, AuditStage::kP}) {
    const bool scores = stage == AuditStage::kScores;
    const auto& theirs = scores ? theirs_.scores : theirs_.p;
    const auto& ours = scores ? tensors.scores : tensors.p;
    Deviation worst;
    size_t at = 0;
    for (size_t b = 0; b < theirs.size(); ++b) {
      const bool fits = b < ours.size() && theirs[b].size() == ours[b].value.size();
      if (!fits) worst.Take(CompareElement(1.0, 0.0, 0.0));
      for (size_t e = 0; fits && e < theirs[b].size(); ++e, ++at) {
        // What the mask hides need not be there before the mask either.
        if (scores && tensors.hidden[at]) continue;
        worst.Take(CompareElement(theirs[b][e], ours[b].value[e], ours[b].bound[e]));
      }
    }
    if (!theirs.empty()) stages.push_back({stage, worst});
  }
  add(AuditStage::kZ, theirs_.z, tensors.z);
  stages.push_back({AuditStage::kY, CompareY(tensors)});
  return stages;
}

// The rows that are furthest from right, and some spread over the rest.
void Evaluator::ChooseSample() {
  const int64_t width = right_.spec.d_out;
  const int64_t n = static_cast<int64_t>(right_tensors_.y_rows.size());
  std::vector<std::pair<double, int64_t>> rows;
  for (int64_t row = 0; row < n; ++row) {
    Deviation worst;
    for (int64_t o = 0; o < width; ++o) {
      const size_t e = static_cast<size_t>(row * width + o);
      worst.Take(
          CompareElement(theirs_.y[e], right_tensors_.y.value[e], right_tensors_.y.bound[e]));
    }
    rows.emplace_back(-worst.ratio, row);
  }
  std::sort(rows.begin(), rows.end());
  if (!rows.empty()) furthest_ = {rows.front().second};
  for (size_t i = 0; i < std::min(rows.size(), kSampleRows - 2); ++i) {
    sample_.push_back(rows[i].second);
  }
  for (const int64_t row : {n / 2, n - 1}) {
    if (row >= 0 && row < n) sample_.push_back(row);
  }
  std::sort(sample_.begin(), sample_.end());
  sample_.erase(std::unique(sample_.begin(), sample_.end()), sample_.end());
}

// By values alone: not where an element is off by far more than any bound could allow.
bool Evaluator::MayAgree(const StageTensors& sample) const {
  const double growth = 1.0 + LargestFinite(sample.y.value) / std::max(largest_y_, 1e-300);
  const double limit = kCoarse * largest_bound_ * growth;
  const size_t width = static_cast<size_t>(right_.spec.d_out);
  for (size_t row = 0; row < sample.y_rows.size(); ++row) {
    for (size_t o = 0; o < width; ++o) {
      const double theirs = theirs_.y[static_cast<size_t>(sample.y_rows[row]) * width + o];
      if (!CompareElement(theirs, sample.y.value[row * width + o], limit).agrees()) return false;
    }
  }
  return true;
}

std::optional<Deviation> Evaluator::TryForm(const AuditCase& c) {
  if (IsCostly(c) && !MayAgree(Run(c, std::nullopt, furthest_))) return std::nullopt;
  // The furthest row alone refutes nearly all.
  for (const std::vector<int64_t>& rows : {furthest_, sample_}) {
    if (!CompareY(Run(c, numbers_, rows)).agrees(kExplainedShare)) return std::nullopt;
  }
  Deviation of_y;
  for (const StageDeviation& stage : Compare(Run(c, numbers_, {}))) {
    if (!stage.deviation.agrees(kExplainedShare)) return std::nullopt;
    if (stage.stage == AuditStage::kY) of_y = stage.deviation;
  }
  return of_y;
}

std::vector<EmptyRow> Evaluator::FormsOf(const AuditCase& c) const {
  const bool as_right = c.plan.reach == right_.plan.reach && c.plan.mask == right_.plan.mask &&
                        c.input == right_.input;
  const bool has = as_right ? right_has_empty_rows_
                            : StagedLayer(c.spec, c.matrices, c.plan).HasEmptyRows(*c.input);
  if (!has) return {EmptyRow::kZero};
  return {EmptyRow::kZero, EmptyRow::kAverage, EmptyRow::kNan};
}

std::optional<Deviation> Evaluator::Try(const AuditCase& c) {
  AuditCase form = c;
  for (const EmptyRow empty : FormsOf(c)) {
    form.plan.empty_row = empty;
    if (const auto found = TryForm(form); found.has_value()) return found;
  }
  return std::nullopt;
}

Evaluator::RoundingEffect Evaluator::EffectOnY(const StageTensors& ours,
                                               const StageTensors& exact) const {
  RoundingEffect y;
  const size_t width = static_cast<size_t>(right_.spec.d_out);
  for (size_t e = 0; e < ours.y.value.size(); ++e) {
    const size_t row = static_cast<size_t>(ours.y_rows[e / width]);
    y.Add(theirs_.y[row * width + e % width], ours.y.value[e], exact.y.value[e],
          exact.y.bound.empty() ? 0.0 : exact.y.bound[e]);
  }
  return y;
}

std::optional<Deviation> Evaluator::TryNumbers(const AuditCase& c) {
  AuditCase in_float = c;
  in_float.plan.weight_scale = WeightScale::kNone;
  in_float.plan.activation_scale = ActivationScale::kNone;
  in_float.plan.wrap16 = false;
  in_float.plan.weights_in_u8 = false;
  const size_t int8 = in_float.projection_key.find("int8-");
  if (int8 != std::string::npos) {
    in_float.projection_key.erase(int8, in_float.projection_key.find(';', int8) - int8 + 1);
  }
  for (const std::vector<int64_t>& rows : {sample_, std::vector<int64_t>()}) {
    const StageTensors ours = Run(c, std::nullopt, rows);
    // Bounds take the longer part of the time.
    if (!rows.empty() && !EffectOnY(ours, Run(in_float, std::nullopt, ours.y_rows)).MayBe()) {
      return std::nullopt;
    }
    const StageTensors exact = Run(in_float, numbers_, ours.y_rows);
    const RoundingEffect y = EffectOnY(ours, exact);
    if (!y.Explained(true)) return std::nullopt;
    if (!rows.empty()) continue;
    const auto explained = [](const std::vector<double>& theirs, const Bounded& with,
                              const Bounded& without) {
      RoundingEffect stage;
      for (size_t e = 0; e < theirs.size(); ++e) {
        stage.Add(theirs[e], with.value[e], without.value[e], without.bound[e]);
      }
      return stage.Explained(false);
    };
    bool all = explained(theirs_.q, ours.q, exact.q) && explained(theirs_.k, ours.k, exact.k) &&
               explained(theirs_.v, ours.v, exact.v) && explained(theirs_.z, ours.z, exact.z);
    for (size_t b = 0; b < theirs_.p.size(); ++b) {
      all = all && explained(theirs_.p[b], ours.p[b], exact.p[b]);
    }
    if (!all) return std::nullopt;
    return Deviation{std::sqrt(y.left / y.count), kLeftOver * std::sqrt(y.whole / y.count), 1.0};
  }
  return std::nullopt;
}

std::optional<Deviation> Evaluator::TryBf16Sums() {
  const StageTensors wide = Run(right_, Bf16SumNumbers(stated_), {});
  for (const StageDeviation& stage : Compare(wide)) {
    const bool is_y = stage.stage == AuditStage::kY;
    if (!stage.deviation.agrees(is_y ? kBf16SumsShare : kExplainedShare)) return std::nullopt;
  }
  size_t beyond = 0;
  for (size_t e = 0; e < theirs_.y.size(); ++e) {
    beyond +=
        CompareElement(theirs_.y[e], right_tensors_.y.value[e], right_tensors_.y.bound[e]).agrees()
            ? 0
            : 1;
  }
  if (2 * beyond < theirs_.y.size()) return std::nullopt;
  return CompareY(wide);
}

bool Evaluator::HasNoEffect(const AuditCase& c) {
  const StageTensors tensors = Run(c, std::nullopt, {});
  std::vector<double> bound = right_tensors_.y.bound;
  for (double& each : bound) each /= 100.0;
  return CompareAll(tensors.y.value, right_tensors_.y.value, bound).agrees();
}

StageTensors Evaluator::Tensors(const AuditCase& c) { return Run(c, std::nullopt, {}); }

AuditStage Evaluator::FirstStage(const AuditCase& c) {
  const StageTensors tensors = Tensors(c);
  const auto differs = [](const std::vector<double>& actual, const Bounded& right) {
    return actual.size() != right.value.size() ||
           !CompareAll(actual, right.value, right.bound).agrees();
  };
  if (differs(tensors.q.value, right_tensors_.q)) return AuditStage::kQ;
  if (differs(tensors.k.value, right_tensors_.k)) return AuditStage::kK;
  if (differs(tensors.v.value, right_tensors_.v)) return AuditStage::kV;
  if (tensors.scores.size() != right_tensors_.scores.size()) return AuditStage::kScores;
  for (size_t b = 0; b < tensors.scores.size(); ++b) {
    if (differs(tensors.scores[b].value, right_tensors_.scores[b])) return AuditStage::kScores;
  }
  for (size_t b = 0; b < tensors.p.size(); ++b) {
    if (differs(tensors.p[b].value, right_tensors_.p[b])) return AuditStage::kP;
  }
  return differs(tensors.z.value, right_tensors_.z) ? AuditStage::kZ : AuditStage::kY;
}

}  // namespace headwise
