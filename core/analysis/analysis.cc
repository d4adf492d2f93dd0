// SPDX-License-Identifier: Apache-2.0
#include "core/analysis/analysis.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/analysis/ratio.h"
#include "core/analysis/rows.h"
#include "core/analysis/similarity.h"

namespace headwise {
namespace {

size_t Index(int64_t value) { return static_cast<size_t>(value); }

absl::Status CheckRange(absl::string_view field, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must be in [", least, ", ", most, "]; was ", value));
}

// Sums of one head's statistics.
struct HeadSums {
  explicit HeadSums(size_t b, size_t directions)
      : entropy(b),
        share(b),
        self(b),
        previous(b),
        first(b),
        distance(b),
        norm(b),
        induction(b),
        along(directions, Ratio(b)) {}
  Ratio entropy, share, self, previous, first, distance, norm, induction;
  std::vector<Ratio> along;
};

double Entropy(const std::vector<double>& shares) {
  double sum = 0.0;
  for (const double p : shares) {
    if (p > 0.0) sum -= p * std::log(p);
  }
  return sum;
}

// Weight on the tokens that follow earlier copies of the row's token; nothing where there are none.
std::optional<double> Induction(const std::vector<int64_t>& ids, int64_t first_row,
                                const WeightRow& row, const float* p) {
  double mass = 0.0;
  bool found = false;
  for (int64_t j = 1; j <= row.query && j < row.keys; ++j) {
    if (ids[Index(first_row + j - 1)] != ids[Index(row.row)] || j - 1 == row.query) continue;
    found = true;
    mass += static_cast<double>(p[j]);
  }
  return found ? std::optional(mass) : std::nullopt;
}

class Statistics {
 public:
  Statistics(const AnalysisInput& input, const AnalysisOptions& options)
      : input_(input),
        options_(options),
        heads_(Index(input.spec->heads)),
        directions_(DirectionCount()),
        sums_(heads_, HeadSums(input.input->queries.size(), directions_)),
        divergence_(heads_ * (heads_ - 1) / 2, Ratio(input.input->queries.size())) {}

  void Take(const WeightRow& row) {
    if (row.query == 0) first_row_ = row.row;
    for (size_t r = 0; r < heads_; ++r) TakeWeights(row, r);
    TakeContributions(row);
    TakeDivergence(row);
  }

  const HeadSums& sums(size_t head) const { return sums_[head]; }
  const Ratio& divergence(size_t pair) const { return divergence_[pair]; }

 private:
  size_t DirectionCount() const {
    const size_t one = Index(input_.spec->d_out) *
                       (options_.per_token ? Index(input_.input->query_rows) : size_t{1});
    return one == 0 ? 0 : options_.directions.size() / one;
  }

  void TakeWeights(const WeightRow& row, size_t r) {
    HeadSums& to = sums_[r];
    const float* p = row.p[r];
    if (row.visible[r] >= 2) {
      const double entropy = Entropy(row.shares[r]);
      to.entropy.Add(row.sequence, entropy);
      to.share.Add(row.sequence, entropy / std::log(static_cast<double>(row.visible[r])));
    }
    if (input_.input->has_memory) return;
    if (row.query >= 1) {
      to.self.Add(row.sequence, static_cast<double>(p[row.query]));
      to.previous.Add(row.sequence, static_cast<double>(p[row.query - 1]));
      to.first.Add(row.sequence, static_cast<double>(p[0]));
    }
    if (row.visible[r] > 0) {
      double distance = 0.0;
      for (int64_t j = 0; j < row.keys; ++j) {
        distance += static_cast<double>(std::abs(row.query - j)) * row.shares[r][Index(j)];
      }
      to.distance.Add(row.sequence, distance);
    }
    if (options_.token_ids.empty()) return;
    const auto mass = Induction(options_.token_ids, first_row_, row, p);
    if (mass.has_value()) to.induction.Add(row.sequence, *mass);
  }

  void TakeContributions(const WeightRow& row) {
    const size_t width = Index(input_.spec->d_out);
    std::vector<double> norms;
    for (size_t r = 0; r < heads_; ++r) {
      const float* c = input_.contributions + (Index(row.row) * heads_ + r) * width;
      double square = 0.0;
      for (size_t o = 0; o < width; ++o)
        square += static_cast<double>(c[o]) * static_cast<double>(c[o]);
      norms.push_back(std::sqrt(square));
      for (size_t n = 0; n < directions_; ++n) {
        const size_t at =
            options_.per_token ? n * Index(input_.input->query_rows) + Index(row.row) : n;
        const float* g = options_.directions.data() + at * width;
        double along = 0.0;
        for (size_t o = 0; o < width; ++o)
          along += static_cast<double>(c[o]) * static_cast<double>(g[o]);
        sums_[r].along[n].Add(row.sequence, along);
      }
    }
    const double all = std::accumulate(norms.begin(), norms.end(), 0.0);
    for (size_t r = 0; r < heads_ && all > 0.0; ++r) {
      sums_[r].norm.Add(row.sequence, norms[r] / all);
    }
  }

  // JS = H((p + q) / 2) - (H(p) + H(q)) / 2, in bits; rows that both heads see something of.
  void TakeDivergence(const WeightRow& row) {
    std::vector<double> entropies;
    for (size_t r = 0; r < heads_; ++r) entropies.push_back(Entropy(row.shares[r]));
    std::vector<double> middle(Index(row.keys));
    size_t pair = 0;
    for (size_t s = 1; s < heads_; ++s) {
      for (size_t r = 0; r < s; ++r, ++pair) {
        if (row.shares[r].empty() || row.shares[s].empty()) continue;
        for (size_t j = 0; j < middle.size(); ++j) {
          middle[j] = 0.5 * (row.shares[r][j] + row.shares[s][j]);
        }
        const double nats = Entropy(middle) - 0.5 * (entropies[r] + entropies[s]);
        divergence_[pair].Add(row.sequence, std::max(0.0, nats) / std::log(2.0));
      }
    }
  }

  const AnalysisInput& input_;
  const AnalysisOptions& options_;
  const size_t heads_;
  const size_t directions_;
  std::vector<HeadSums> sums_;
  std::vector<Ratio> divergence_;
  int64_t first_row_ = 0;  // of the sequence at hand
};

HeadStatistics ToStatistics(int64_t id, const HeadSums& sums, absl::Span<const int64_t> units,
                            const Resamples* resamples) {
  HeadStatistics head;
  head.head = id;
  head.entropy_nats = sums.entropy.ToStat(units, resamples);
  head.entropy_share = sums.share.ToStat(units, resamples);
  head.self_mass = sums.self.ToStat(units, resamples);
  head.previous_token_mass = sums.previous.ToStat(units, resamples);
  head.first_token_mass = sums.first.ToStat(units, resamples);
  head.mean_distance = sums.distance.ToStat(units, resamples);
  head.norm_share = sums.norm.ToStat(units, resamples);
  head.induction_score = sums.induction.ToStat(units, resamples);
  for (const Ratio& along : sums.along) head.directions.push_back(along.ToStat(units, resamples));
  return head;
}

}  // namespace

absl::Status CheckAnalysis(const LayerSpec& spec, const ValidInput& input,
                           const AnalysisOptions& options) {
  absl::Status status =
      CheckRange("permutations", static_cast<double>(options.permutations), 1, 1e5);
  status.Update(CheckRange("family_wise_level", options.family_wise_level, 1e-6, 0.5));
  status.Update(CheckRange("max_tokens", static_cast<double>(options.max_tokens), 4, 8192));
  status.Update(CheckRange("bootstrap.resamples", static_cast<double>(options.bootstrap.resamples),
                           100, 1e5));
  status.Update(CheckRange("bootstrap.level", options.bootstrap.level, 1e-6, 1.0 - 1e-6));
  if (!status.ok()) return status;
  const size_t rows = Index(input.query_rows);
  if (!options.token_ids.empty() && options.token_ids.size() != rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token_ids: must hold ", rows, " ids, one a token; was ", options.token_ids.size()));
  }
  const size_t one = Index(spec.d_out) * (options.per_token ? rows : size_t{1});
  if (!options.directions.empty() && (one == 0 || options.directions.size() % one != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("directions: must be [n, ", spec.d_out,
                                                   "] or [n, ", rows, ", ", spec.d_out, "]; was ",
                                                   options.directions.size(), " numbers"));
  }
  return absl::OkStatus();
}

AnalysisResult AnalyzeHeads(const AnalysisInput& input, const AnalysisOptions& options,
                            const AnalysisWatch& watch) {
  AnalysisResult result;
  const std::vector<int64_t>& lengths = input.input->queries;
  const size_t heads = Index(input.spec->heads);
  Statistics statistics(input, options);
  ForEachRow(input, watch, [&](const WeightRow& row) { statistics.Take(row); });
  std::vector<int64_t> units;
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] > 0) units.push_back(static_cast<int64_t>(s));
  }
  std::optional<Resamples> drawn;
  if (static_cast<int64_t>(units.size()) >= kLeastSequences) {
    drawn.emplace(static_cast<int64_t>(units.size()), options.bootstrap);
  }
  const Resamples* resamples = drawn.has_value() ? &*drawn : nullptr;
  const TokenSample sample = SampleTokens(lengths, options.max_tokens, options.seed);
  const std::vector<PairSimilarity> similar = CompareContributions(input, sample, options, watch);
  if (watch.stop()) return result;
  const std::vector<int64_t>& ids = input.spec->head_ids;
  for (size_t r = 0; r < heads; ++r) {
    result.heads.push_back(ToStatistics(ids[r], statistics.sums(r), units, resamples));
  }
  size_t pair = 0;
  for (size_t s = 1; s < heads; ++s) {
    for (size_t r = 0; r < s; ++r, ++pair) {
      result.pairs.push_back({{std::min(ids[r], ids[s]), std::max(ids[r], ids[s])},
                              statistics.divergence(pair).ToStat(units, resamples, /*root=*/true),
                              similar[pair].cka,
                              similar[pair].cosine});
    }
  }
  std::sort(result.heads.begin(), result.heads.end(),
            [](const HeadStatistics& a, const HeadStatistics& b) { return a.head < b.head; });
  std::sort(result.pairs.begin(), result.pairs.end(),
            [](const HeadPair& a, const HeadPair& b) { return a.heads < b.heads; });
  result.permutations = options.permutations;
  result.family_wise_level = options.family_wise_level;
  result.tokens_used = static_cast<int64_t>(sample.rows.size());
  result.sampled = result.tokens_used < input.input->query_rows;
  result.seed = options.seed;
  return result;
}

}  // namespace headwise
