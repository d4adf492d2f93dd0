// SPDX-License-Identifier: Apache-2.0
// How alike heads are: debiased linear CKA and cosine of their contributions, with the evidence of
// a permutation null.
#ifndef HEADWISE_CORE_ANALYSIS_SIMILARITY_H_
#define HEADWISE_CORE_ANALYSIS_SIMILARITY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "core/analysis/analysis.h"

namespace headwise {

// Some tokens of the input: which rows, and where their sequences begin and end among them.
struct TokenSample {
  std::vector<int64_t> rows;       // of the packed input, ascending
  std::vector<int64_t> sequences;  // of each row
};

// All tokens, or `most` of them drawn evenly by the seed.
TokenSample SampleTokens(const std::vector<int64_t>& lengths, int64_t most, uint32_t seed);

// For each pair of heads r < s, in order of axis indices: CKA and cosine with intervals (over the
// sequences), and p values by one family: max-T over all pairs and both statistics, each
// standardised by its own null (Westfall & Young 1993), one head's tokens permuted within every
// sequence, the same permutations for all pairs.
struct PairSimilarity {
  TestedStat cka, cosine;
};
std::vector<PairSimilarity> CompareContributions(const AnalysisInput& input,
                                                 const TokenSample& sample,
                                                 const AnalysisOptions& options,
                                                 const AnalysisWatch& watch);

}  // namespace headwise

#endif  // HEADWISE_CORE_ANALYSIS_SIMILARITY_H_
