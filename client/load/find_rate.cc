// SPDX-License-Identifier: Apache-2.0
#include "client/load/find_rate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "client/load/schedule.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr double kLowestRate = 0.1;

// One search. `best_` kept the bounds, `miss_` didn't.
class Search {
 public:
  Search(const FindRateSettings& settings,
         const std::function<absl::StatusOr<TrialOutcome>(double rate)>& run)
      : settings_(settings), run_(run) {}

  absl::StatusOr<FoundRate> Run() {
    CLIENT_RETURN_IF_ERROR(Bracket());
    CLIENT_RETURN_IF_ERROR(Bisect());
    while (best_ > 0 && !found_.confirmed && HasTrials()) {
      CLIENT_RETURN_IF_ERROR(Confirm());
    }
    found_.rate = best_;
    found_.generator_limited = miss_limited_;
    return std::move(found_);
  }

 private:
  bool HasTrials() const {
    return found_.trials.size() < static_cast<size_t>(settings_.most_trials);
  }

  absl::StatusOr<bool> Met(double rate, bool confirming) {
    CLIENT_ASSIGN_OR_RETURN(const TrialOutcome outcome, run_(rate));
    found_.trials.push_back({rate, confirming, outcome});
    const bool met = outcome.met && !outcome.limited;
    if (!met) {
      miss_ = rate;
      miss_limited_ = outcome.limited;
    } else if (!confirming) {
      best_ = rate;
    }
    return met;
  }

  absl::Status Bracket() {
    for (double rate = settings_.start; HasTrials() && rate >= kLowestRate;) {
      CLIENT_ASSIGN_OR_RETURN(const bool met, Met(rate, false));
      if (met ? std::isfinite(miss_) : best_ > 0) break;
      if (met && rate >= RateSchedule::kMaxRate) break;
      rate = met ? std::min(2 * rate, RateSchedule::kMaxRate) : rate / 2;
    }
    return absl::OkStatus();
  }

  absl::Status Bisect() {
    while (best_ > 0 && std::isfinite(miss_) && miss_ > (1 + settings_.precision) * best_ &&
           HasTrials()) {
      CLIENT_RETURN_IF_ERROR(Met(std::sqrt(best_ * miss_), false).status());
    }
    return absl::OkStatus();
  }

  // Runs the best rate again; where it fails, finds the best one below.
  absl::Status Confirm() {
    for (int i = 0; i < settings_.confirmations; ++i) {
      if (!HasTrials()) return absl::OkStatus();
      CLIENT_ASSIGN_OR_RETURN(const bool met, Met(best_, true));
      if (met) continue;
      // The first success was luck: look for the next one well below.
      const double lower = best_ * (1 - 2 * settings_.precision);
      best_ = 0;
      for (double rate = lower; best_ == 0 && rate >= kLowestRate && HasTrials();
           rate *= 1 - 2 * settings_.precision) {
        CLIENT_RETURN_IF_ERROR(Met(rate, false).status());
      }
      return Bisect();
    }
    found_.confirmed = true;
    return absl::OkStatus();
  }

  const FindRateSettings settings_;
  const std::function<absl::StatusOr<TrialOutcome>(double rate)>& run_;
  FoundRate found_;
  double best_ = 0;
  double miss_ = std::numeric_limits<double>::infinity();
  bool miss_limited_ = false;
};

}  // namespace

absl::StatusOr<FoundRate> FindRate(
    const FindRateSettings& settings,
    const std::function<absl::StatusOr<TrialOutcome>(double rate)>& run) {
  return Search(settings, run).Run();
}

}  // namespace headwise::client
