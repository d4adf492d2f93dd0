// SPDX-License-Identifier: Apache-2.0
// Effects of ablations from sums over sequences, and their intervals: sums add up over requests, so
// the client shares this leaf. Everything here is thread-safe; objects are immutable once made.
#ifndef HEADWISE_CORE_FORMAT_EFFECTS_H_
#define HEADWISE_CORE_FORMAT_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace headwise {

// ‖y‖², <y, y - y'> and ‖y - y'‖² of some tokens.
struct EffectSums {
  double y_sq = 0.0;
  double y_delta = 0.0;
  double delta_sq = 0.0;

  void Add(const EffectSums& other);
  bool finite() const;
};

// Undefined figures (‖y‖ = 0 or not finite) are absent.
struct Effect {
  std::optional<double> l2;           // ‖y - y'‖
  std::optional<double> relative_l2;  // ‖y - y'‖ / ‖y‖
  std::optional<double> cosine;       // <y, y'> / (‖y‖ ‖y'‖)
};

Effect MakeEffect(const EffectSums& sums);

// The mean of each field where it is defined; absent where it is nowhere.
Effect MeanOfDefined(absl::Span<const Effect> effects);

struct BootstrapOptions {
  double level = 0.95;
  int64_t resamples = 2000;
  uint32_t seed = 0;
};

enum class IntervalMethod : uint8_t { kBca, kRange };

struct Interval {
  double low = 0.0;
  double high = 0.0;
  double level = 0.0;  // 0 for a range
  IntervalMethod method = IntervalMethod::kRange;
  int64_t resamples = 0;
  uint32_t seed = 0;
};

// Below so many sequences an interval is the smallest and the largest of them.
inline constexpr int64_t kLeastSequences = 8;

// Resamples of `units` whole sequences, drawn once, so that all statistics see the same ones. Holds
// 2 * units * resamples bytes.
class Resamples {
 public:
  Resamples(int64_t units, const BootstrapOptions& options);

  int64_t units() const { return units_; }
  const BootstrapOptions& options() const { return options_; }

  // sums[i] = sum over u of values[u] times how often resample i holds unit u.
  std::vector<double> Sums(absl::Span<const double> values) const;

 private:
  int64_t units_;
  BootstrapOptions options_;
  std::vector<uint16_t> counts_;  // [units, resamples]
};

// Bias-corrected and accelerated interval (Efron 1987) of an estimate from its resampled values and
// its values without one unit each. Absent where a value isn't finite.
std::optional<Interval> BcaInterval(double estimate, std::vector<double> resampled,
                                    absl::Span<const double> jackknife,
                                    const BootstrapOptions& options);

// Quantile function of the standard normal distribution; p in (0, 1).
double NormalQuantile(double p);

struct EffectIntervals {
  std::optional<Interval> l2;
  std::optional<Interval> relative_l2;
  std::optional<Interval> cosine;
};

// `draws` holds one list of sums [sequences] for each draw of an ablation; its figure is the mean
// over the draws of the figure pooled over sequences.
using DrawSums = std::vector<std::vector<EffectSums>>;
Effect PooledEffect(const DrawSums& draws);
std::vector<Effect> EffectPerSequence(const DrawSums& draws);

// By the resamples of the sequences that have tokens: `units` are their indices; null `resamples`:
// ranges. `y_sq` are resamples->Sums of the units' ‖y‖², which all ablations share; empty: summed
// here.
EffectIntervals IntervalsOf(const DrawSums& draws, absl::Span<const int64_t> units,
                            const Resamples* resamples, absl::Span<const double> y_sq = {});

// A pair's sums: <d_a, d_b>, ‖d_a‖², ‖d_b‖², ‖d_a + d_b‖², ‖y‖², d what each takes away from y.
struct PairSums {
  double product = 0.0;
  double a_sq = 0.0;
  double b_sq = 0.0;
  double both_sq = 0.0;
  double y_sq = 0.0;

  void Add(const PairSums& other);
  std::optional<double> interaction() const;  // <d_a, d_b> / (‖d_a‖ ‖d_b‖)
  std::optional<double> relative_l2() const;
  std::optional<double> relative_l2_if_orthogonal() const;  // sqrt(e_a² + e_b²)
};

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_EFFECTS_H_
