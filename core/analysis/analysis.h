// SPDX-License-Identifier: Apache-2.0
// What heads do, and which of them do alike, from the weights and contributions of one forward.
// Everything here is pure and thread-safe.
#ifndef HEADWISE_CORE_ANALYSIS_ANALYSIS_H_
#define HEADWISE_CORE_ANALYSIS_ANALYSIS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/batch/validate.h"
#include "core/format/effects.h"
#include "core/layer/spec.h"
#include "core/request.h"

namespace headwise {

// A figure pooled over rows of all sequences, with its interval over sequences. Absent where no row
// has it.
struct Stat {
  std::optional<double> value;
  std::optional<Interval> interval;
};

// Rows are query positions. Masses and distances are by index and absent with a memory, whose keys
// are no tokens of the query's own sequence.
struct HeadStatistics {
  int64_t head = 0;              // id
  Stat entropy_nats;             // of rows that see two keys or more; a sink's share left out
  Stat entropy_share;            // the same as a share of ln(visible keys)
  Stat self_mass;                // weight on the query's own token; these three of rows t >= 1
  Stat previous_token_mass;      // on token t - 1
  Stat first_token_mass;         // on token 0
  Stat mean_distance;            // sum p |i - j| in tokens, of rows that see a key
  Stat norm_share;               // ‖c_r‖ / sum ‖c_s‖
  Stat induction_score;          // weight on tokens that follow an earlier copy of the row's token
  std::vector<Stat> directions;  // <g, c_r>
};

// An effect size with the evidence for it: small p where permuted tokens seldom come so far.
struct TestedStat {
  std::optional<double> value;
  std::optional<Interval> interval;
  std::optional<double> p_value;  // family-wise, over all pairs and both statistics
  bool finding = false;           // p_value <= the family-wise level
};

struct HeadPair {
  std::array<int64_t, 2> heads = {};  // ids
  Stat js_distance;   // square root of the mean base-2 Jensen-Shannon divergence of rows of p
  TestedStat cka;     // debiased linear CKA of contributions, not clipped
  TestedStat cosine;  // of contributions
};

struct AnalysisOptions {
  BootstrapOptions bootstrap;
  int64_t permutations = 999;
  double family_wise_level = 0.05;
  int64_t max_tokens = 512;  // CKA and its null look at a sample of so many
  uint32_t seed = 0;
  std::vector<int64_t> token_ids;  // [N]; empty: no induction score
  // [n, d_out], or [n, N, d_out] with `per_token`.
  std::vector<float> directions;
  bool per_token = false;
};

// What is looked at. Views must outlive the call.
struct AnalysisInput {
  const LayerSpec* spec = nullptr;
  const ValidInput* input = nullptr;
  std::vector<const float*> p;           // [B]: [H, T, S] of each sequence
  const float* contributions = nullptr;  // [N, H, d_out]
};

struct AnalysisResult {
  std::vector<HeadStatistics> heads;  // by id
  std::vector<HeadPair> pairs;        // by ids
  int64_t permutations = 0;
  double family_wise_level = 0.0;
  int64_t tokens_used = 0;  // by CKA and the null
  bool sampled = false;     // fewer than all
  uint32_t seed = 0;
};

// INVALID_ARGUMENT: options out of range, token ids or directions of another size than the input.
absl::Status CheckAnalysis(const LayerSpec& spec, const ValidInput& input,
                           const AnalysisOptions& options);

// Who waits for an analysis.
struct AnalysisWatch {
  // Asked now and then; where it says true the result is not complete and nobody wants it.
  std::function<bool()> stop;
  std::function<void(const RequestProgress&)> progress;  // may be empty

  // Tells of some twenty parts of the stage.
  void Report(const char* stage, int64_t done, int64_t total) const {
    constexpr int64_t kReports = 20;
    const int64_t step = total < kReports ? 1 : total / kReports;
    if (progress && done % step == 0) progress({stage, done, total});
  }
};

// `options` passed CheckAnalysis.
AnalysisResult AnalyzeHeads(const AnalysisInput& input, const AnalysisOptions& options,
                            const AnalysisWatch& watch);

}  // namespace headwise

#endif  // HEADWISE_CORE_ANALYSIS_ANALYSIS_H_
