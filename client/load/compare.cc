// SPDX-License-Identifier: Apache-2.0
#include "client/load/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/load/statistics.h"
#include "client/status.h"
#include "nlohmann/json.hpp"

namespace headwise::client {
namespace {

using Json = nlohmann::ordered_json;  // what is written
using Report = nlohmann::json;        // what is read: the order of its keys means nothing

constexpr size_t kFewestBlocks = 5;
constexpr int kResamples = 1000;

// The same in both, or what is compared isn't the same thing.
constexpr const char* kSameAtTop[] = {"layer",       "method",   "loop",    "rate",
                                      "concurrency", "arrivals", "lengths", "duration_s"};
constexpr const char* kSameInSetup[] = {"layers",    "servers",  "priority",
                                        "timeout_s", "schedule", "generator"};

struct Figure {
  const char* name;
  uint32_t per_10000;  // 0: no percentile
};
constexpr Figure kFigures[] = {
    {"requests_per_s", 0}, {"mean", 0}, {"p50", 5000}, {"p90", 9000}, {"p99", 9900}};

struct Block {
  double seconds = 0;
  double ok = 0;
  Distribution latency{Distribution::kCoarseBits};
};

void Add(const Block& block, Block* sum) {
  sum->seconds += block.seconds;
  sum->ok += block.ok;
  sum->latency.Merge(block.latency);
}

double ValueOf(const Figure& figure, const Block& block) {
  if (figure.per_10000 > 0) {
    return block.latency.count() == 0
               ? 0
               : static_cast<double>(block.latency.Percentile(figure.per_10000)) / 1000;
  }
  if (absl::string_view(figure.name) == "mean") return block.latency.mean_ns() / 1000;
  return block.seconds > 0 ? block.ok / block.seconds : 0;
}

// Windows by run. What came after the measured window is left out: the load had ended by then.
std::map<uint64_t, std::vector<Block>> ReadWindows(const Report& report) {
  std::map<uint64_t, std::vector<Block>> runs;
  const double duration_s = report.at("duration_s").get<double>();
  for (const Report& window : report.at("windows")) {
    if (window.at("begin_s").get<double>() >= duration_s) continue;
    Block block;
    block.seconds = window.at("seconds").get<double>();
    block.ok = window.at("ok").get<double>();
    for (const Report& bucket : window.at("latency_us")) {
      block.latency.Add(1000 * bucket.at(0).get<int64_t>(), bucket.at(1).get<uint64_t>());
    }
    runs[window.at("run").get<uint64_t>()].push_back(std::move(block));
  }
  return runs;
}

std::vector<Block> ToBlocks(const std::map<uint64_t, std::vector<Block>>& runs, bool whole_runs) {
  std::vector<Block> blocks;
  for (const auto& [run, windows] : runs) {
    if (!whole_runs) {
      blocks.insert(blocks.end(), windows.begin(), windows.end());
      continue;
    }
    Block sum;
    for (const Block& window : windows) Add(window, &sum);
    blocks.push_back(std::move(sum));
  }
  return blocks;
}

Block Resample(const std::vector<Block>& blocks, std::mt19937_64* random) {
  Block sum;
  for (size_t i = 0; i < blocks.size(); ++i) Add(blocks[(*random)() % blocks.size()], &sum);
  return sum;
}

// Fills the changes' intervals.
void AddIntervals(const std::vector<Block>& before, const std::vector<Block>& after, uint64_t seed,
                  Comparison* comparison) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<double>> drawn(comparison->changes.size());
  for (int i = 0; i < kResamples; ++i) {
    const Block a = Resample(before, &random), b = Resample(after, &random);
    for (size_t j = 0; j < drawn.size(); ++j) {
      const auto figure = std::find_if(
          std::begin(kFigures), std::end(kFigures),
          [&](const Figure& candidate) { return candidate.name == comparison->changes[j].figure; });
      const double from = ValueOf(*figure, a);
      if (from > 0) drawn[j].push_back(ValueOf(*figure, b) / from - 1);
    }
  }
  const double tail = (1 - comparison->level) / 2;
  for (size_t j = 0; j < drawn.size(); ++j) {
    if (drawn[j].size() < kResamples / 2) continue;
    std::sort(drawn[j].begin(), drawn[j].end());
    const auto at = [&](double share) {
      return drawn[j][static_cast<size_t>(share * static_cast<double>(drawn[j].size() - 1))];
    };
    comparison->changes[j].low = at(tail);
    comparison->changes[j].high = at(1 - tail);
  }
}

void FindMismatches(const Report& before, const Report& after, Comparison* comparison) {
  const auto check = [&](const char* name, const Report& a, const Report& b) {
    const Report x = a.value(name, Report()), y = b.value(name, Report());
    if (x != y)
      comparison->mismatches.push_back(absl::StrCat(name, ": ", x.dump(), " and ", y.dump()));
  };
  for (const char* name : kSameAtTop) check(name, before, after);
  check("asked", before.at("connections"), after.at("connections"));
  check("warmup", before.at("requests"), after.at("requests"));
  for (const char* name : kSameInSetup) check(name, before.at("setup"), after.at("setup"));
}

void AddChanges(const Report& before, const Report& after, Comparison* comparison) {
  for (const Figure& figure : kFigures) {
    const bool top = absl::string_view(figure.name) == "requests_per_s";
    const Report& a = top ? before : before.at("latency_us");
    const Report& b = top ? after : after.at("latency_us");
    if (!a.contains(figure.name) || !b.contains(figure.name)) {
      comparison->weak.push_back(figure.name);
      continue;
    }
    Change change{.figure = figure.name,
                  .before = a.at(figure.name).get<double>(),
                  .after = b.at(figure.name).get<double>(),
                  .change = 0,
                  .low = {},
                  .high = {}};
    if (change.before > 0) change.change = change.after / change.before - 1;
    comparison->changes.push_back(std::move(change));
  }
}

ComparisonVerdict Judge(const Comparison& comparison, double tolerance) {
  bool faster = false, slower = false, known = false;
  for (const Change& change : comparison.changes) {
    if (!change.low.has_value()) continue;
    known = true;
    const bool more_is_better = change.figure == "requests_per_s";
    const bool up = *change.low > tolerance, down = *change.high < -tolerance;
    faster = faster || (more_is_better ? up : down);
    slower = slower || (more_is_better ? down : up);
  }
  if (!known) return ComparisonVerdict::kTooShort;
  if (faster && slower) return ComparisonVerdict::kMixed;
  if (faster) return ComparisonVerdict::kFaster;
  return slower ? ComparisonVerdict::kSlower : ComparisonVerdict::kNoDifferenceShown;
}

const char* NameOf(ComparisonVerdict verdict) {
  switch (verdict) {
    case ComparisonVerdict::kNoDifferenceShown:
      return "NO_DIFFERENCE_SHOWN";
    case ComparisonVerdict::kFaster:
      return "FASTER";
    case ComparisonVerdict::kSlower:
      return "SLOWER";
    case ComparisonVerdict::kMixed:
      return "MIXED";
    case ComparisonVerdict::kTooShort:
      return "TOO_SHORT";
  }
  return "";
}

absl::StatusOr<Comparison> CompareParsed(const Report& before, const Report& after,
                                         const CompareSettings& settings) {
  Comparison comparison;
  FindMismatches(before, after, &comparison);
  if (!comparison.mismatches.empty() && !settings.force) {
    return absl::InvalidArgumentError(
        absl::StrCat("reports: must be of the same set-up (--force compares them all the same); "
                     "was ",
                     absl::StrJoin(comparison.mismatches, ", ")));
  }
  AddChanges(before, after, &comparison);
  comparison.level = 1 - 0.05 / static_cast<double>(std::size(kFigures));
  const auto before_runs = ReadWindows(before), after_runs = ReadWindows(after);
  const bool whole_runs = std::min(before_runs.size(), after_runs.size()) >= kFewestBlocks;
  comparison.blocks = whole_runs ? "runs" : "windows";
  const std::vector<Block> a = ToBlocks(before_runs, whole_runs);
  const std::vector<Block> b = ToBlocks(after_runs, whole_runs);
  comparison.before_blocks = a.size();
  comparison.after_blocks = b.size();
  if (std::min(a.size(), b.size()) >= kFewestBlocks) {
    AddIntervals(a, b, settings.seed, &comparison);
  }
  comparison.verdict = Judge(comparison, settings.tolerance);
  return comparison;
}

}  // namespace

absl::StatusOr<Comparison> CompareReports(absl::string_view before, absl::string_view after,
                                          const CompareSettings& settings) {
  // nlohmann throws at what isn't there or isn't of the type; a damaged file must not end us.
  try {
    return CompareParsed(Report::parse(before), Report::parse(after), settings);
  } catch (const Report::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("reports: must be JSON that headwise-load wrote; was: ", error.what()));
  }
}

std::string ComparisonJson(const Comparison& comparison) {
  Json changes = Json::array();
  for (const Change& change : comparison.changes) {
    Json json = {{"figure", change.figure},
                 {"before", change.before},
                 {"after", change.after},
                 {"change", change.change}};
    if (change.low.has_value()) {
      json["interval"] = {{"low", *change.low},
                          {"high", *change.high},
                          {"level", comparison.level},
                          {"method", "BOOTSTRAP"},
                          {"resamples", kResamples}};
    }
    changes.push_back(std::move(json));
  }
  const Json json = {{"mismatches", comparison.mismatches},
                     {"changes", std::move(changes)},
                     {"weak", comparison.weak},
                     {"blocks",
                      {{"kind", comparison.blocks},
                       {"before", comparison.before_blocks},
                       {"after", comparison.after_blocks}}},
                     {"verdict", NameOf(comparison.verdict)}};
  return json.dump() + "\n";
}

std::string ComparisonText(const Comparison& comparison, const Terminal& terminal) {
  std::string text;
  for (const std::string& mismatch : comparison.mismatches) {
    absl::StrAppend(&text, "not the same: ", CleanText(mismatch), "\n");
  }
  Table table(
      {{"figure"},
       {"before", Table::Align::kRight},
       {"after", Table::Align::kRight},
       {"change", Table::Align::kRight},
       {absl::StrFormat("%.3g %% interval", 100 * comparison.level), Table::Align::kRight}});
  for (const Change& change : comparison.changes) {
    const bool rate = change.figure == "requests_per_s";
    const auto value = [rate](double number) {
      return rate ? absl::StrFormat("%.1f/s", number) : HumanMicros(number);
    };
    table.Add({change.figure, value(change.before), value(change.after),
               absl::StrFormat("%+.1f %%", 100 * change.change),
               change.low.has_value()
                   ? absl::StrFormat("%+.1f to %+.1f %%", 100 * *change.low, 100 * *change.high)
                   : "-"});
  }
  absl::StrAppend(&text, table.Render(terminal), "\nintervals over ", comparison.before_blocks,
                  " and ", comparison.after_blocks, " ", comparison.blocks,
                  comparison.blocks == "windows"
                      ? " of single runs; --repeat 5 would show how runs differ\n"
                      : "\n");
  if (!comparison.weak.empty()) {
    absl::StrAppend(&text, "too few calls for: ", absl::StrJoin(comparison.weak, ", "), "\n");
  }
  return absl::StrCat(text, "verdict: ", NameOf(comparison.verdict), "\n");
}

}  // namespace headwise::client
