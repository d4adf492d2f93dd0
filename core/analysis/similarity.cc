// SPDX-License-Identifier: Apache-2.0
#include "core/analysis/similarity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "absl/types/span.h"

namespace headwise {
namespace {

size_t Index(int64_t value) { return static_cast<size_t>(value); }

double Dot(const float* a, const float* b, size_t count) {
  // Lanes of their own, so that the loop can run on whole vectors.
  float lanes[16] = {};
  double sum = 0.0;
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (size_t l = 0; l < 16; ++l) lanes[l] += a[i + l] * b[i + l];
    if (i % 512 != 0) continue;
    for (float& lane : lanes) {
      sum += static_cast<double>(lane);
      lane = 0.0f;
    }
  }
  for (const float lane : lanes) sum += static_cast<double>(lane);
  for (; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// The Gram matrix of one head's contributions over the sample, U-centred: zero diagonal, rows that
// sum to zero, so that products of two of them are unbiased HSIC (Szekely & Rizzo 2014; Song et al.
// 2012). [n, n].
class CentredGram {
 public:
  CentredGram(const AnalysisInput& input, const TokenSample& sample, int64_t head)
      : n_(sample.rows.size()), values_(n_ * n_, 0.0f) {
    const int64_t width = input.spec->d_out;
    const auto row = [&](size_t i) {
      return input.contributions + (sample.rows[i] * input.spec->heads + head) * width;
    };
    std::vector<double> gram(n_ * n_, 0.0), sums(n_, 0.0);
    double total = 0.0;
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = 0; j < i; ++j) {
        gram[i * n_ + j] = Dot(row(i), row(j), Index(width));
        sums[i] += gram[i * n_ + j];
        sums[j] += gram[i * n_ + j];
      }
    }
    for (const double sum : sums) total += sum;
    const double n = static_cast<double>(n_);
    double largest = 0.0;
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = 0; j < i; ++j) {
        gram[i * n_ + j] += total / ((n - 1.0) * (n - 2.0)) - (sums[i] + sums[j]) / (n - 2.0);
        largest = std::max(largest, std::fabs(gram[i * n_ + j]));
      }
    }
    // A common factor changes no ratio, and keeps f32 far from its ends.
    const double unit = largest > 0.0 && std::isfinite(largest) ? 1.0 / largest : 1.0;
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = 0; j < i; ++j) {
        const float value = static_cast<float>(gram[i * n_ + j] * unit);
        values_[i * n_ + j] = values_[j * n_ + i] = value;
      }
    }
  }

  size_t size() const { return n_; }
  const float* row(size_t i) const { return values_.data() + i * n_; }

  // The lower triangle of the matrix with its tokens permuted, row after row.
  void Permute(const std::vector<uint32_t>& order, float* out) const {
    for (size_t i = 0; i < n_; ++i) {
      const float* from = row(order[i]);
      for (size_t j = 0; j < i; ++j) *out++ = from[order[j]];
    }
  }

 private:
  size_t n_;
  std::vector<float> values_;
};

// Places of the sample's sequences: [begin, end) of each among the sample's rows.
std::vector<std::pair<size_t, size_t>> Stretches(const TokenSample& sample) {
  std::vector<std::pair<size_t, size_t>> stretches;
  for (size_t i = 0; i < sample.rows.size(); ++i) {
    if (i == 0 || sample.sequences[i] != sample.sequences[i - 1]) stretches.push_back({i, i});
    stretches.back().second = i + 1;
  }
  return stretches;
}

std::vector<std::vector<uint32_t>> DrawPermutations(const TokenSample& sample, int64_t count,
                                                    uint32_t seed) {
  std::mt19937_64 random(0x5EEDull + seed);
  std::vector<std::vector<uint32_t>> permutations(Index(count));
  const auto stretches = Stretches(sample);
  for (std::vector<uint32_t>& order : permutations) {
    order.resize(sample.rows.size());
    std::iota(order.begin(), order.end(), 0u);
    for (const auto& [begin, end] : stretches) {
      for (size_t i = end - begin; i > 1; --i) {
        const size_t j = ((random() >> 32) * i) >> 32;
        std::swap(order[begin + i - 1], order[begin + j]);
      }
    }
  }
  return permutations;
}

// Values of one statistic of one pair: the observed one first, then those of the permutations.
using Null = std::vector<double>;

// <U_r, U_s> over <U_r, U_r> and <U_s, U_s>, observed and permuted, for all pairs.
std::vector<Null> CkaNull(const std::vector<CentredGram>& grams,
                          const std::vector<std::vector<uint32_t>>& permutations,
                          const AnalysisWatch& watch) {
  const size_t heads = grams.size(), n = grams.front().size();
  const size_t triangle = n * (n - 1) / 2;
  std::vector<uint32_t> identity(n);
  std::iota(identity.begin(), identity.end(), 0u);
  std::vector<std::vector<float>> plain(heads, std::vector<float>(triangle));
  std::vector<double> norms;
  for (size_t r = 0; r < heads; ++r) {
    grams[r].Permute(identity, plain[r].data());
    norms.push_back(std::sqrt(Dot(plain[r].data(), plain[r].data(), triangle)));
  }
  std::vector<Null> nulls(heads * (heads - 1) / 2);
  std::vector<float> permuted(triangle);
  const int64_t count = static_cast<int64_t>(permutations.size());
  for (size_t b = 0; b <= permutations.size(); ++b) {
    watch.Report("permutations", static_cast<int64_t>(b), count);
    size_t pair = 0;
    for (size_t s = 1; s < heads; ++s) {
      if (watch.stop()) return nulls;
      grams[s].Permute(b == 0 ? identity : permutations[b - 1], permuted.data());
      for (size_t r = 0; r < s; ++r, ++pair) {
        nulls[pair].push_back(Dot(plain[r].data(), permuted.data(), triangle) /
                              (norms[r] * norms[s]));
      }
    }
  }
  return nulls;
}

// Products of two heads' contributions within each stretch: [tokens, tokens] of each.
Null CosineNull(const AnalysisInput& input, const TokenSample& sample,
                const std::vector<std::vector<uint32_t>>& permutations, int64_t r, int64_t s) {
  const int64_t width = input.spec->d_out;
  const auto row = [&](size_t i, int64_t head) {
    return input.contributions + (sample.rows[i] * input.spec->heads + head) * width;
  };
  std::vector<std::vector<double>> products(sample.rows.size());
  std::vector<size_t> begins(sample.rows.size());
  double r_sq = 0.0, s_sq = 0.0;
  for (const auto& [begin, end] : Stretches(sample)) {
    for (size_t i = begin; i < end; ++i) {
      begins[i] = begin;
      r_sq += Dot(row(i, r), row(i, r), Index(width));
      s_sq += Dot(row(i, s), row(i, s), Index(width));
      for (size_t j = begin; j < end; ++j) {
        products[i].push_back(Dot(row(i, r), row(j, s), Index(width)));
      }
    }
  }
  Null null;
  const double norm = std::sqrt(r_sq * s_sq);
  for (size_t b = 0; b <= permutations.size(); ++b) {
    double sum = 0.0;
    for (size_t i = 0; i < products.size(); ++i) {
      sum += products[i][(b == 0 ? i : permutations[b - 1][i]) - begins[i]];
    }
    null.push_back(sum / norm);
  }
  return null;
}

// Distances from the null's own mean in its own standard deviations; two-sided where `both`. A null
// that doesn't vary, or isn't finite, never stands out.
void Standardise(bool both, Null* null) {
  double mean = 0.0, square = 0.0;
  for (const double value : *null) mean += value / static_cast<double>(null->size());
  for (const double value : *null) square += (value - mean) * (value - mean);
  const double deviation = std::sqrt(square / static_cast<double>(null->size()));
  for (double& value : *null) {
    const double t = (value - mean) / deviation;
    value = std::isfinite(t) && deviation > 1e-12 ? (both ? std::fabs(t) : t)
                                                  : -std::numeric_limits<double>::infinity();
  }
}

// P(largest >= this one), the observed arrangement, which comes first, counted among the
// permutations. `maxima` holds the largest value of all statistics, permutation by permutation.
void SetPValue(const Null& null, const Null& maxima, double level, TestedStat* stat) {
  if (!stat->value.has_value()) return;
  const auto reach = std::count_if(maxima.begin(), maxima.end(),
                                   [&](double largest) { return largest >= null.front(); });
  stat->p_value = static_cast<double>(reach) / static_cast<double>(maxima.size());
  stat->finding = *stat->p_value <= level;
}

// `nulls` are those of CKA of every pair, then those of the cosines; they are standardised here.
void SetPValues(double level, std::vector<Null>* nulls, std::vector<PairSimilarity>* pairs) {
  const size_t count = pairs->size();
  Null maxima;
  for (size_t i = 0; i < nulls->size(); ++i) {
    Null& null = (*nulls)[i];
    Standardise(/*both=*/i >= count, &null);
    if (maxima.empty()) maxima = null;
    std::transform(null.begin(), null.end(), maxima.begin(), maxima.begin(),
                   [](double a, double b) { return std::max(a, b); });
  }
  for (size_t i = 0; i < count; ++i) {
    SetPValue((*nulls)[i], maxima, level, &(*pairs)[i].cka);
    SetPValue((*nulls)[count + i], maxima, level, &(*pairs)[i].cosine);
  }
}

// Sums of products between sequences, [B, B].
std::vector<double> BlockSums(const CentredGram& a, const CentredGram& b,
                              const std::vector<std::pair<size_t, size_t>>& stretches) {
  std::vector<double> sums;
  for (const auto& [i_begin, i_end] : stretches) {
    for (const auto& [j_begin, j_end] : stretches) {
      double sum = 0.0;
      for (size_t i = i_begin; i < i_end; ++i) {
        sum += Dot(a.row(i) + j_begin, b.row(i) + j_begin, j_end - j_begin);
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

// w^T S w for every resample's counts and, after them, with each sequence left out.
std::vector<double> Quadratics(const std::vector<double>& sums, const Resamples& resamples) {
  const size_t units = Index(resamples.units());
  const size_t count = Index(resamples.options().resamples);
  std::vector<double> values(count + units, 0.0);
  for (size_t s = 0; s < units; ++s) {
    std::vector<double> this_one(units, 0.0);
    this_one[s] = 1.0;
    const std::vector<double> counts = resamples.Sums(this_one);
    const std::vector<double> inner =
        resamples.Sums(absl::Span<const double>(sums.data() + s * units, units));
    for (size_t i = 0; i < count; ++i) values[i] += counts[i] * inner[i];
  }
  const double all = std::accumulate(sums.begin(), sums.end(), 0.0);
  for (size_t u = 0; u < units; ++u) {
    double without = all + sums[u * units + u];
    for (size_t s = 0; s < units; ++s) without -= sums[u * units + s] + sums[s * units + u];
    values[count + u] = without;
  }
  return values;
}

// Interval of a ratio a / sqrt(b c) from its resampled and left-out values.
std::optional<Interval> RatioInterval(double estimate, const std::vector<double>& a,
                                      const std::vector<double>& b, const std::vector<double>& c,
                                      const Resamples& resamples) {
  std::vector<double> values;
  for (size_t i = 0; i < a.size(); ++i) values.push_back(a[i] / std::sqrt(b[i] * c[i]));
  const size_t count = Index(resamples.options().resamples);
  const std::vector<double> left_out(values.begin() + static_cast<int64_t>(count), values.end());
  values.resize(count);
  return BcaInterval(estimate, std::move(values), left_out, resamples.options());
}

// Sums over each stretch and, for Quadratics' order, their resampled and left-out totals.
std::vector<double> Totals(const std::vector<double>& sums, const Resamples& resamples) {
  std::vector<double> values = resamples.Sums(sums);
  const double all = std::accumulate(sums.begin(), sums.end(), 0.0);
  for (const double sum : sums) values.push_back(all - sum);
  return values;
}

std::vector<double> StretchProducts(const AnalysisInput& input, const TokenSample& sample,
                                    int64_t r, int64_t s) {
  const int64_t width = input.spec->d_out;
  std::vector<double> sums;
  for (const auto& [begin, end] : Stretches(sample)) {
    sums.push_back(0.0);
    for (size_t i = begin; i < end; ++i) {
      const float* row = input.contributions + sample.rows[i] * input.spec->heads * width;
      sums.back() += Dot(row + r * width, row + s * width, Index(width));
    }
  }
  return sums;
}

void AddIntervals(const AnalysisInput& input, const TokenSample& sample,
                  const std::vector<CentredGram>& grams, const BootstrapOptions& bootstrap,
                  const AnalysisWatch& watch, std::vector<PairSimilarity>* pairs) {
  const auto stretches = Stretches(sample);
  // Fewer sequences than an interval needs, and so many that a matrix of them is too large.
  constexpr size_t kMostSequences = 512;
  if (static_cast<int64_t>(stretches.size()) < kLeastSequences ||
      stretches.size() > kMostSequences) {
    return;
  }
  const Resamples resamples(static_cast<int64_t>(stretches.size()), bootstrap);
  std::vector<std::vector<double>> own_cka, own_cosine;
  for (size_t r = 0; r < grams.size(); ++r) {
    const int64_t head = static_cast<int64_t>(r);
    own_cka.push_back(Quadratics(BlockSums(grams[r], grams[r], stretches), resamples));
    own_cosine.push_back(Totals(StretchProducts(input, sample, head, head), resamples));
  }
  size_t pair = 0;
  for (size_t s = 1; s < grams.size(); ++s) {
    for (size_t r = 0; r < s; ++r, ++pair) {
      if (watch.stop()) return;
      watch.Report("intervals", static_cast<int64_t>(pair), static_cast<int64_t>(pairs->size()));
      PairSimilarity& similarity = (*pairs)[pair];
      if (similarity.cka.value.has_value()) {
        similarity.cka.interval = RatioInterval(
            *similarity.cka.value, Quadratics(BlockSums(grams[r], grams[s], stretches), resamples),
            own_cka[r], own_cka[s], resamples);
      }
      if (similarity.cosine.value.has_value()) {
        const std::vector<double> products =
            StretchProducts(input, sample, static_cast<int64_t>(r), static_cast<int64_t>(s));
        similarity.cosine.interval =
            RatioInterval(*similarity.cosine.value, Totals(products, resamples), own_cosine[r],
                          own_cosine[s], resamples);
      }
    }
  }
}

}  // namespace

TokenSample SampleTokens(const std::vector<int64_t>& lengths, int64_t most, uint32_t seed) {
  TokenSample sample;
  std::vector<int64_t> sequence_of;
  for (size_t s = 0; s < lengths.size(); ++s) {
    sequence_of.insert(sequence_of.end(), Index(lengths[s]), static_cast<int64_t>(s));
  }
  sample.rows.resize(sequence_of.size());
  std::iota(sample.rows.begin(), sample.rows.end(), int64_t{0});
  if (static_cast<int64_t>(sample.rows.size()) > most) {
    std::mt19937_64 random(0x70CE25ull + seed);
    for (size_t i = 0; i < Index(most); ++i) {
      const size_t left = sample.rows.size() - i;
      std::swap(sample.rows[i], sample.rows[i + (((random() >> 32) * left) >> 32)]);
    }
    sample.rows.resize(Index(most));
    std::sort(sample.rows.begin(), sample.rows.end());
  }
  for (const int64_t row : sample.rows) sample.sequences.push_back(sequence_of[Index(row)]);
  return sample;
}

std::vector<PairSimilarity> CompareContributions(const AnalysisInput& input,
                                                 const TokenSample& sample,
                                                 const AnalysisOptions& options,
                                                 const AnalysisWatch& watch) {
  const size_t heads = Index(input.spec->heads);
  std::vector<PairSimilarity> pairs(heads * (heads - 1) / 2);
  // The unbiased estimate divides by n - 3.
  constexpr size_t kLeastTokens = 4;
  if (heads < 2 || sample.rows.size() < kLeastTokens) return pairs;
  std::vector<CentredGram> grams;
  for (size_t r = 0; r < heads && !watch.stop(); ++r) {
    grams.emplace_back(input, sample, static_cast<int64_t>(r));
  }
  if (watch.stop()) return pairs;
  const auto permutations = DrawPermutations(sample, options.permutations, options.seed);
  std::vector<Null> nulls = CkaNull(grams, permutations, watch);
  if (watch.stop()) return pairs;
  for (size_t s = 1; s < heads; ++s) {
    for (size_t r = 0; r < s; ++r) {
      nulls.push_back(CosineNull(input, sample, permutations, static_cast<int64_t>(r),
                                 static_cast<int64_t>(s)));
    }
    if (watch.stop()) return pairs;
  }
  const size_t count = pairs.size();
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(nulls[i][0])) pairs[i].cka.value = nulls[i][0];
    if (std::isfinite(nulls[count + i][0])) pairs[i].cosine.value = nulls[count + i][0];
  }
  AddIntervals(input, sample, grams, options.bootstrap, watch, &pairs);
  SetPValues(options.family_wise_level, &nulls, &pairs);
  return pairs;
}

}  // namespace headwise
