// SPDX-License-Identifier: Apache-2.0
#include "core/ablation/prune_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace headwise {
namespace {

size_t Index(int64_t value) { return static_cast<size_t>(value); }

// A symmetric matrix [n, n].
class Square {
 public:
  explicit Square(size_t n) : n_(n), values_(n * n, 0.0) {}
  double& at(size_t r, size_t c) { return values_[r * n_ + c]; }
  double at(size_t r, size_t c) const { return values_[r * n_ + c]; }
  size_t size() const { return n_; }
  void Add(const Square& other) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] += other.values_[i];
  }

 private:
  size_t n_;
  std::vector<double> values_;
};

// Sums over some sequences.
struct Moments {
  explicit Moments(size_t heads) : products(heads), means(heads) {}
  Square products;  // <c_r, c_s> over tokens
  Square means;     // <sum c_r, sum c_s>
  double y_sq = 0.0;
  double tokens = 0.0;
};

// Cholesky's solution of a x = b; nothing where a isn't positive definite enough for f64.
std::optional<std::vector<double>> Solve(Square a, std::vector<double> b) {
  const size_t n = a.size();
  double largest = 0.0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, a.at(i, i));
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = 0; k < j; ++k) a.at(j, j) -= a.at(j, k) * a.at(j, k);
    // The sums' own rounding, f32 products: below it a direction is noise.
    if (!(a.at(j, j) > 1e-7 * largest)) return std::nullopt;
    a.at(j, j) = std::sqrt(a.at(j, j));
    for (size_t i = j + 1; i < n; ++i) {
      for (size_t k = 0; k < j; ++k) a.at(i, j) -= a.at(i, k) * a.at(j, k);
      a.at(i, j) /= a.at(j, j);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a.at(i, k) * b[k];
    b[i] /= a.at(i, i);
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a.at(k, i) * b[k];
    b[i] /= a.at(i, i);
  }
  return b;
}

// min ‖target - sum g_r c_r‖² over the kept heads, the target's products with them given. A
// singular system is pulled a little towards gates of 1.
std::vector<double> FitGates(const Square& products, const std::vector<size_t>& kept,
                             const std::vector<double>& target, bool* ridge) {
  const size_t n = kept.size();
  Square a(n);
  std::vector<double> b(n);
  double largest = 0.0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) a.at(i, j) = products.at(kept[i], kept[j]);
    b[i] = target[kept[i]];
    largest = std::max(largest, a.at(i, i));
  }
  if (auto solved = Solve(a, b); solved.has_value()) return *std::move(solved);
  *ridge = true;
  const double pull = 1e-4 * (largest > 0.0 ? largest : 1.0);
  for (size_t i = 0; i < n; ++i) {
    a.at(i, i) += pull;
    b[i] += pull;
  }
  return Solve(a, b).value_or(std::vector<double>(n, 1.0));
}

struct Fit {
  std::vector<size_t> kept;
  std::vector<double> gates, gates_mean_folded;  // of `kept`
  bool ridge = false;
};

Fit FitStep(const Moments& train, const std::vector<size_t>& dropped) {
  Fit fit;
  const size_t heads = train.products.size();
  std::vector<double> target(heads, 0.0), folded(heads, 0.0);
  for (size_t r = 0; r < heads; ++r) {
    if (std::find(dropped.begin(), dropped.end(), r) == dropped.end()) fit.kept.push_back(r);
    for (size_t s = 0; s < heads; ++s) target[r] += train.products.at(r, s);
    folded[r] = target[r];
    for (const size_t d : dropped) folded[r] -= train.means.at(d, r) / train.tokens;
  }
  fit.gates = FitGates(train.products, fit.kept, target, &fit.ridge);
  fit.gates_mean_folded = FitGates(train.products, fit.kept, folded, &fit.ridge);
  return fit;
}

// Units in the order in which they are dropped.
std::vector<size_t> GreedyOrder(const Square& products, const std::vector<SweepUnit>& units) {
  std::vector<size_t> order;
  std::vector<bool> gone(products.size(), false);
  const auto cost = [&](const std::vector<bool>& out) {
    double sum = 0.0;
    for (size_t r = 0; r < out.size(); ++r) {
      for (size_t s = 0; s < out.size() && out[r]; ++s) sum += out[s] ? products.at(r, s) : 0.0;
    }
    return sum;
  };
  std::vector<bool> used(units.size(), false);
  while (order.size() < units.size()) {
    double least = std::numeric_limits<double>::infinity();
    size_t best = units.size();
    for (size_t u = 0; u < units.size(); ++u) {
      if (used[u]) continue;
      std::vector<bool> tried = gone;
      for (const int64_t head : units[u].heads) tried[Index(head)] = true;
      const double value = cost(tried);
      if (best == units.size() || value < least) {
        least = value;
        best = u;
      }
    }
    used[best] = true;
    for (const int64_t head : units[best].heads) gone[Index(head)] = true;
    order.push_back(best);
  }
  return order;
}

std::vector<size_t> HeadsOf(const std::vector<SweepUnit>& units, const std::vector<size_t>& order,
                            size_t steps) {
  std::vector<size_t> heads;
  for (size_t i = 0; i < steps; ++i) {
    for (const int64_t head : units[order[i]].heads) heads.push_back(Index(head));
  }
  std::sort(heads.begin(), heads.end());
  return heads;
}

// The folds' moments, and products between their sums of contributions.
class Folds {
 public:
  Folds(const AblationPlan& plan, const PruneSums& sums, int64_t heads)
      : plan_(plan), heads_(Index(heads)) {
    folds_.assign(Index(plan.folds), Moments(heads_));
    for (size_t f = 0; f < folds_.size(); ++f) {
      Moments& m = folds_[f];
      m.y_sq = sums.y_sq[f];
      m.tokens = sums.tokens[f];
      const double* products = sums.products.data() + f * heads_ * heads_;
      for (size_t r = 0; r < heads_; ++r) {
        for (size_t s = 0; s < heads_; ++s) m.products.at(r, s) = products[r * heads_ + s];
      }
    }
  }

  size_t count() const { return folds_.size(); }
  const Moments& fold(size_t f) const { return folds_[f]; }

  // All folds but `held_out` (count(): none).
  Moments Train(size_t held_out) const {
    Moments train(heads_);
    for (size_t f = 0; f < count(); ++f) {
      if (f == held_out) continue;
      train.products.Add(folds_[f].products);
      train.y_sq += folds_[f].y_sq;
      train.tokens += folds_[f].tokens;
      for (size_t g = 0; g < count(); ++g) {
        if (g == held_out) continue;
        for (size_t r = 0; r < heads_; ++r) {
          for (size_t s = 0; s < heads_; ++s) train.means.at(r, s) += SumProduct(f, r, g, s);
        }
      }
    }
    return train;
  }

  // ‖sum a_r c_r - offset‖² over the tokens of fold f, where the offset is the mean contribution of
  // `folded` over the other folds.
  double Error(size_t f, const Moments& train, const std::vector<double>& a,
               const std::vector<size_t>& folded) const {
    double error = 0.0;
    for (size_t r = 0; r < heads_; ++r) {
      for (size_t s = 0; s < heads_; ++s) error += a[r] * a[s] * folds_[f].products.at(r, s);
      double with_offset = 0.0;
      for (const size_t d : folded) {
        for (size_t g = 0; g < count(); ++g) {
          if (g != f) with_offset += SumProduct(g, d, f, r) / train.tokens;
        }
      }
      error -= 2.0 * a[r] * with_offset;
    }
    for (const size_t d : folded) {
      for (const size_t e : folded) {
        error += folds_[f].tokens * train.means.at(d, e) / (train.tokens * train.tokens);
      }
    }
    return error;
  }

 private:
  double SumProduct(size_t f, size_t r, size_t g, size_t s) const {
    return plan_.fold_products[(f * heads_ + r) * count() * heads_ + g * heads_ + s];
  }

  const AblationPlan& plan_;
  const size_t heads_;
  std::vector<Moments> folds_;
};

// What each head loses: all of itself where it is dropped, 1 - g where it has a gate.
std::vector<double> Losses(size_t heads, const std::vector<size_t>& dropped,
                           const std::vector<size_t>& kept, const std::vector<double>& gates) {
  std::vector<double> a(heads, 0.0);
  for (const size_t r : dropped) a[r] = 1.0;
  for (size_t i = 0; i < gates.size(); ++i) a[kept[i]] = 1.0 - gates[i];
  return a;
}

// Pooled held-out errors with `steps` units dropped.
PruneErrors HeldOutErrors(const Folds& folds, const std::vector<SweepUnit>& units,
                          const std::vector<std::vector<size_t>>& orders,
                          const std::vector<Moments>& trains, size_t heads, size_t steps) {
  double y_sq = 0.0, ungated = 0.0, gated = 0.0, folded = 0.0, both = 0.0;
  for (size_t f = 0; f < folds.count(); ++f) {
    const Moments& train = trains[f];
    const std::vector<size_t> dropped = HeadsOf(units, orders[f], steps);
    const Fit fit = FitStep(train, dropped);
    const std::vector<double> plain = Losses(heads, dropped, {}, {});
    y_sq += folds.fold(f).y_sq;
    ungated += folds.Error(f, train, plain, {});
    gated += folds.Error(f, train, Losses(heads, dropped, fit.kept, fit.gates), {});
    folded += folds.Error(f, train, plain, dropped);
    both += folds.Error(f, train, Losses(heads, dropped, fit.kept, fit.gates_mean_folded), dropped);
  }
  const auto relative = [y_sq](double error) -> std::optional<double> {
    if (!(y_sq > 0.0) || !std::isfinite(y_sq) || !std::isfinite(error)) return std::nullopt;
    return std::sqrt(std::max(0.0, error) / y_sq);
  };
  return {relative(ungated), relative(gated), relative(folded), relative(both)};
}

// Without biases; FLOPs of a dense forward, a key/value head's only where none uses it any more. A
// norm over the whole width goes on computing the rows of q and k that go.
void CountSavings(const LayerSpec& spec, const std::vector<size_t>& dropped, const PruneSums& sums,
                  PruneStep* step) {
  std::set<int64_t> used;
  for (size_t r = 0; r < Index(spec.heads); ++r) {
    if (std::find(dropped.begin(), dropped.end(), r) == dropped.end()) {
      used.insert(spec.query_to_kv[r]);
    }
  }
  const bool rows_stay = spec.normed_over_width();
  for (const size_t r : dropped) {
    const int64_t own = (rows_stay ? 0 : spec.d_model * spec.dk[r]) + spec.dv[r] * spec.d_out;
    step->parameters_saved += own;
    step->flops_saved += 2 * (sums.queries * own + sums.pairs * (spec.dk[r] + spec.dv[r]));
  }
  for (int64_t g = 0; g < spec.kv_heads; ++g) {
    if (used.contains(g)) continue;
    const int64_t own = spec.d_memory * ((rows_stay ? 0 : spec.kv_dk(g)) + spec.kv_dv(g));
    step->parameters_saved += own;
    step->flops_saved += 2 * sums.keys * own;
  }
}

}  // namespace

void AddPruneSums(const AblationPlan& plan, const std::vector<SegmentGram>& grams,
                  const LayerSpec& spec, const std::vector<int64_t>& queries,
                  const std::vector<int64_t>& keys, PruneSums* sums) {
  const size_t heads = Index(spec.heads), rows = Index(plan.gram_rows(spec.heads));
  sums->products.resize(Index(plan.folds) * heads * heads, 0.0);
  sums->y_sq.resize(Index(plan.folds), 0.0);
  sums->tokens.resize(Index(plan.folds), 0.0);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const TokenSegment& segment = plan.segments[i];
    const int64_t fold = plan.fold_of[Index(segment.sequence)];
    if (fold < 0) continue;
    sums->y_sq[Index(fold)] += grams[i].At(rows, heads, heads);
    sums->tokens[Index(fold)] += static_cast<double>(segment.end - segment.begin);
    double* products = sums->products.data() + Index(fold) * heads * heads;
    for (size_t r = 0; r < heads; ++r) {
      for (size_t s = 0; s < heads; ++s) products[r * heads + s] += grams[i].At(rows, r, s);
    }
  }
  for (size_t s = 0; s < queries.size(); ++s) {
    sums->sequences += queries[s] > 0 ? 1 : 0;
    sums->queries += queries[s];
    sums->keys += keys[s];
    sums->pairs += queries[s] * keys[s];
  }
}

PrunePlan MakePrunePlan(const AblationPlan& plan, const LayerSpec& spec, PruneSums sums) {
  const size_t heads = Index(spec.heads);
  PrunePlan result;
  result.folds = plan.folds;
  if (sums.sequences < plan.folds) {
    result.sums = std::move(sums);
    return result;
  }
  const Folds folds(plan, sums, spec.heads);
  std::vector<Moments> trains;
  std::vector<std::vector<size_t>> orders;
  for (size_t f = 0; f <= folds.count(); ++f) {
    trains.push_back(folds.Train(f));
    orders.push_back(GreedyOrder(trains.back().products, plan.units));
  }
  for (const size_t unit : orders.back()) result.order.push_back(plan.units[unit].id);
  for (size_t steps = 1; steps < plan.units.size(); ++steps) {
    PruneStep step;
    const std::vector<size_t> dropped = HeadsOf(plan.units, orders.back(), steps);
    for (const size_t head : dropped) step.dropped.push_back(spec.head_ids[head]);
    const Fit fit = FitStep(trains.back(), dropped);
    step.ridge = fit.ridge;
    for (size_t i = 0; i < fit.kept.size(); ++i) {
      const int64_t id = spec.head_ids[fit.kept[i]];
      step.gates.push_back({id, fit.gates[i]});
      step.gates_mean_folded.push_back({id, fit.gates_mean_folded[i]});
    }
    step.errors = HeldOutErrors(folds, plan.units, orders, trains, heads, steps);
    CountSavings(spec, dropped, sums, &step);
    result.steps.push_back(std::move(step));
  }
  const size_t width = Index(spec.d_out);
  for (size_t r = 0; r < heads; ++r) {
    HeadMean mean{spec.head_ids[r], std::vector<float>(width)};
    for (size_t o = 0; o < width; ++o) {
      double sum = 0.0;
      for (size_t f = 0; f < folds.count(); ++f) {
        sum += static_cast<double>(plan.fold_contributions[(f * heads + r) * width + o]);
      }
      mean.mean[o] = static_cast<float>(sum / trains.back().tokens);
    }
    result.means.push_back(std::move(mean));
  }
  result.sums = std::move(sums);
  return result;
}

}  // namespace headwise
