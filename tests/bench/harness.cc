// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "absl/log/log.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bench.h"

namespace headwise::bench {
double SecondsOf(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Row MakeRow(const std::string& name, const Spread& spread, const char* unit) {
  return {.name = name,
          .value = spread.median,
          .low = spread.low,
          .high = spread.high,
          .unit = unit,
          .error = {},
          .peer = {}};
}

int64_t Settings::Size(int64_t size, uint32_t which) const {
  if (jitter == 0) return size;
  std::mt19937 random(jitter * 1000003u + which);
  const double factor = std::uniform_real_distribution<double>(0.85, 1.15)(random);
  return std::max<int64_t>(1, std::llround(static_cast<double>(size) * factor));
}

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

double BestSeconds(double least_seconds, absl::FunctionRef<void()> work) {
  double best = SecondsOf(work);
  double spent = best;
  for (int run = 1; run < 1000 && (run < 2 || spent < least_seconds); ++run) {
    const double seconds = SecondsOf(work);
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

namespace {

int64_t StatusBytes(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) return std::atoll(line.c_str() + line.find(':') + 1) * 1024;
  }
  LOG(FATAL) << "/proc/self/status: must have " << key;
}

}  // namespace

int64_t ResidentBytes() { return StatusBytes("VmRSS"); }
int64_t PeakResidentBytes() { return StatusBytes("VmHWM"); }
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

Row ShareOfPeak(const Settings& settings, const std::string& name, double flops, Peak* peak,
                absl::FunctionRef<void()> work) {
  work();  // warm: pages, caches, the frequency
  std::vector<double> shares;
  for (int i = 0; i < settings.repetitions(); ++i) {
    const double peak_rate = peak->Measure();
    shares.push_back(flops / BestSeconds(settings.seconds(), work) / peak_rate);
  }
  return MakeRow(name, SpreadOf(std::move(shares)), "share");
}

Row TimeRatio(const Settings& settings, const std::string& name,
              absl::FunctionRef<void()> numerator, absl::FunctionRef<void()> denominator) {
  numerator();
  denominator();
  std::vector<double> ratios;
  const double least = settings.seconds();
  for (int i = 0; i < settings.repetitions(); ++i) {
    const double below = BestSeconds(least, denominator);
    ratios.push_back(BestSeconds(least, numerator) / below);
  }
  return MakeRow(name, SpreadOf(std::move(ratios)), "ratio");
}

std::string Compare(const std::vector<double>& expected, const std::vector<double>& actual,
                    double tolerance) {
  if (expected.size() != actual.size()) {
    return absl::StrFormat("%d values instead of %d", actual.size(), expected.size());
  }
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(std::fabs(expected[i] - actual[i]) <= tolerance * largest)) {
      return absl::StrFormat("element %d: %.9g instead of %.9g (largest %.3g)", i, actual[i],
                             expected[i], largest);
    }
  }
  return "";
}

}  // namespace headwise::bench
