// SPDX-License-Identifier: Apache-2.0
#include "client/load/threshold.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr double kWhole = 10000;

// Reads "p99", "p99.9", "mean", "max", "errors", "requests_per_s".
bool ReadFigure(absl::string_view text, Threshold* threshold) {
  using Figure = Threshold::Figure;
  double percent = 0;
  if (absl::string_view number = text;
      absl::ConsumePrefix(&number, "p") && absl::SimpleAtod(number, &percent)) {
    threshold->figure = Figure::kPercentile;
    threshold->per_10000 = static_cast<uint32_t>(std::lround(percent * 100));
    return percent > 0 && percent < 100 && threshold->per_10000 > 0 && threshold->per_10000 < 10000;
  }
  if (text == "mean")
    threshold->figure = Figure::kMean;
  else if (text == "max")
    threshold->figure = Figure::kMax;
  else if (text == "errors")
    threshold->figure = Figure::kErrors;
  else if (text == "requests_per_s")
    threshold->figure = Figure::kRequestsPerSecond;
  else
    return false;
  return true;
}

bool ReadBound(absl::string_view text, Threshold* threshold) {
  if (threshold->figure == Threshold::Figure::kErrors) {
    const bool percent = absl::ConsumeSuffix(&text, "%");
    if (!absl::SimpleAtod(text, &threshold->bound)) return false;
    if (percent) threshold->bound /= 100;
    return threshold->bound > 0 && threshold->bound <= 1;
  }
  if (threshold->figure == Threshold::Figure::kRequestsPerSecond) {
    return absl::SimpleAtod(text, &threshold->bound) && threshold->bound > 0;
  }
  absl::Duration time;
  if (!absl::ParseDuration(text, &time) || time <= absl::ZeroDuration() ||
      time > absl::Hours(1000)) {
    return false;
  }
  threshold->bound = absl::ToDoubleNanoseconds(time);
  return true;
}

}  // namespace

uint64_t Threshold::Allowance(double planned) const {
  return static_cast<uint64_t>(std::floor(planned * (kWhole - per_10000) / kWhole));
}

bool Threshold::IsMiss(const Sample& sample) const {
  return !sample.ok() || static_cast<double>(sample.done_ns - sample.planned_ns) > bound;
}

uint64_t Threshold::Misses(const RunRecord& record) const {
  return record.sent - record.latency.CountUpTo(static_cast<int64_t>(bound));
}

absl::StatusOr<std::vector<Threshold>> ParseThresholds(absl::string_view flag,
                                                       absl::string_view text) {
  std::vector<Threshold> thresholds;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    Threshold threshold;
    threshold.text = std::string(part);
    const size_t sign = part.find_first_of("<>");
    const bool read =
        sign != part.npos && ReadFigure(part.substr(0, sign), &threshold) &&
        ReadBound(part.substr(sign + 1), &threshold) &&
        (part[sign] == '>') == (threshold.figure == Threshold::Figure::kRequestsPerSecond);
    if (!read) {
      return UsageError(absl::StrCat("--", flag,
                                     ": must be bounds like p99<20ms, mean<5ms, max<1s, errors<1% "
                                     "or requests_per_s>500, with commas; was \"",
                                     text, "\""));
    }
    thresholds.push_back(std::move(threshold));
  }
  return thresholds;
}

ThresholdOutcome Check(const Threshold& threshold, const RunRecord& record, double requests_per_s) {
  ThresholdOutcome outcome{.text = threshold.text, .met = false, .value = {}, .is_time = true};
  const auto below = [&](double value) {
    outcome.value = value;
    outcome.met = value < threshold.bound;
  };
  switch (threshold.figure) {
    case Threshold::Figure::kPercentile: {
      const auto value = record.latency.SupportedPercentile(threshold.per_10000);
      if (!value.has_value()) break;
      outcome.value = static_cast<double>(*value);
      outcome.met =
          threshold.Misses(record) <= threshold.Allowance(static_cast<double>(record.sent));
      break;
    }
    case Threshold::Figure::kMean:
      if (record.ok > 0) below(record.latency.mean_ns());
      break;
    case Threshold::Figure::kMax:
      if (record.ok > 0) below(static_cast<double>(record.latency.max_ns()));
      outcome.met = outcome.met && record.failed == 0;
      break;
    case Threshold::Figure::kErrors:
      outcome.is_time = false;
      if (record.sent > 0) {
        below(static_cast<double>(record.failed) / static_cast<double>(record.sent));
      }
      break;
    case Threshold::Figure::kRequestsPerSecond:
      outcome.is_time = false;
      outcome.value = requests_per_s;
      outcome.met = requests_per_s > threshold.bound;
      break;
  }
  return outcome;
}

}  // namespace headwise::client
