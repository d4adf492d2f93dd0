// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_page.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/html_chart.h"
#include "client/html_page.h"

namespace headwise::client {
namespace {

std::string TimeTick(double ns) { return ns == 0 ? "0" : HumanMicros(ns / 1000); }
std::string RateTick(double per_s) { return absl::StrFormat("%.4g/s", per_s); }

// Latency over the share of calls that are faster, which is stretched towards 1: each nine of it
// takes as much room as the one before.
Chart::Series SpectrumOf(const char* name, const Distribution& values) {
  Chart::Series series{name, {}};
  const auto total = static_cast<double>(values.count());
  double seen = 0;
  for (const auto& [largest_ns, count] : values.Buckets()) {
    seen += static_cast<double>(count);
    // The last value would lie at infinity: it is drawn where one call of twice as many would.
    const double above = std::max(total - seen, 0.5) / total;
    series.points.emplace_back(-std::log10(above), static_cast<double>(largest_ns));
  }
  return series;
}

std::string Spectrum(const LoadReport& report) {
  Chart chart;
  chart.y_text = TimeTick;
  chart.series = {SpectrumOf("latency, from the planned send", report.total.latency),
                  SpectrumOf("service, from the actual send", report.total.service)};
  const double nines = std::log10(2 * static_cast<double>(std::max<uint64_t>(5, report.total.ok)));
  const std::pair<double, const char*> kTicks[] = {{0.5, "50 %"},       {0.9, "90 %"},
                                                   {0.99, "99 %"},      {0.999, "99.9 %"},
                                                   {0.9999, "99.99 %"}, {0.99999, "99.999 %"}};
  chart.x_ticks.push_back({0, "0"});
  constexpr double kRoomForAll = 0.6;
  for (const auto& [share, text] : kTicks) {
    const double at = -std::log10(1 - share);
    if (at < nines - kRoomForAll) chart.x_ticks.push_back({at, text});
  }
  chart.x_ticks.push_back({nines, "all"});
  return HtmlChart("spectrum", chart,
                   "Latency spectrum of OK answers: how many calls were at least as fast");
}

// The windows of all runs, one run after the other: begin in seconds of the window's middle.
struct TimedWindow {
  double middle_s;
  double seconds;
  const Window* window;
};
std::vector<TimedWindow> AllWindows(const LoadReport& report) {
  std::vector<TimedWindow> all;
  double begin_s = 0;
  for (const RunResult& run : report.runs) {
    const double seconds = static_cast<double>(run.record.window_ns) * 1e-9;
    for (const Window& window : run.record.windows) {
      all.push_back({begin_s + seconds / 2, seconds, &window});
      begin_s += seconds;
    }
  }
  return all;
}

std::vector<Chart::Tick> TimeTicks(const std::vector<TimedWindow>& windows) {
  std::vector<Chart::Tick> ticks;
  const double end = windows.back().middle_s + windows.back().seconds / 2;
  const double step = ScaleFor(end).step;
  for (int i = 0; i * step <= end; ++i) {
    ticks.push_back({i * step, absl::StrFormat("%g s", i * step)});
  }
  if (ticks.back().at < end) ticks.push_back({end, ""});
  return ticks;
}

std::string OverTime(const LoadReport& report) {
  const std::vector<TimedWindow> windows = AllWindows(report);
  if (windows.empty()) return "";
  Chart rate, latency;
  rate.y_text = RateTick;
  latency.y_text = TimeTick;
  rate.x_ticks = latency.x_ticks = TimeTicks(windows);
  rate.series = {{"ok", {}}, {"failed", {}}};
  latency.series = {{"p50", {}}, {"p90", {}}, {"p99", {}}, {"max", {}}};
  constexpr uint32_t kShown[] = {5000, 9000, 9900};
  for (const auto& [middle_s, seconds, window] : windows) {
    rate.series[0].points.emplace_back(middle_s, static_cast<double>(window->ok) / seconds);
    rate.series[1].points.emplace_back(middle_s, static_cast<double>(window->failed) / seconds);
    if (window->latency.count() == 0) continue;
    for (size_t i = 0; i < std::size(kShown); ++i) {
      if (const auto value = window->latency.SupportedPercentile(kShown[i])) {
        latency.series[i].points.emplace_back(middle_s, static_cast<double>(*value));
      }
    }
    latency.series[3].points.emplace_back(middle_s, static_cast<double>(window->latency.max_ns()));
  }
  // Windows of too few calls have no high percentile.
  std::erase_if(latency.series, [](const Chart::Series& series) { return series.points.empty(); });
  return absl::StrCat(
      HtmlChart("throughput", rate, "Answers over time, by when they came"),
      HtmlChart("latency", latency, "Latency over time, by when the calls were planned"));
}

// A bar of the mean time of a call: what the generator was late by, the server's queue and
// compute, and the rest (network, gRPC, encoding).
std::string Split(const LoadReport& report) {
  const RunRecord& total = report.total;
  const double latency = total.latency.mean_ns();
  if (latency <= 0) return "";
  const double service = std::min(latency, total.service.mean_ns());
  const double queue = std::min(service, total.queue.mean_ns());
  const double compute = std::min(service - queue, total.compute.mean_ns());
  const std::pair<const char*, double> kParts[] = {
      {"send delay", latency - service},
      {"queue", queue},
      {"compute", compute},
      {"network and the rest", service - queue - compute}};
  std::string svg = "<svg width=\"100%\" height=\"28\">";
  std::vector<std::string> keys;
  double begun = 0;
  for (size_t i = 0; i < std::size(kParts); ++i) {
    const auto& [name, ns] = kParts[i];
    absl::StrAppend(&svg, "<rect x=\"", Percentage(begun / latency), "\" width=\"",
                    Percentage(ns / latency), "\" height=\"28\" style=\"fill:", SeriesColour(i),
                    "\"/>");
    keys.push_back(absl::StrCat(name, " ", HumanMicros(ns / 1000)));
    begun += ns;
  }
  return Figure("split", absl::StrCat(svg, "</svg>", ColourKeys(keys)),
                "Where the mean call's time goes; queue and compute are the server's figures");
}

std::string Percentiles(const LoadReport& report) {
  std::vector<std::vector<std::string>> rows = {{"", "count", "mean"}};
  for (const auto& [name, p] : kPercentiles) rows[0].push_back(name);
  rows[0].push_back("max");
  const RunRecord& total = report.total;
  const std::pair<std::string, const Distribution*> kLines[] = {
      {"latency", &total.latency},
      {"service", &total.service},
      {"send delay", &total.send_delay},
      {"server: queue", &total.queue},
      {"server: compute", &total.compute}};
  const auto add = [&](const std::string& name, const Distribution& values) {
    if (values.count() == 0) return;
    std::vector<std::string> row = {name, absl::StrCat(values.count()),
                                    HumanMicros(values.mean_ns() / 1000)};
    for (const auto& [title, per_10000] : kPercentiles) {
      const auto value = values.SupportedPercentile(per_10000);
      row.push_back(value ? TimeTick(static_cast<double>(*value)) : "-");
    }
    row.push_back(TimeTick(static_cast<double>(values.max_ns())));
    rows.push_back(std::move(row));
  };
  for (const auto& [name, values] : kLines) add(name, *values);
  for (const PartGroup& group : PartGroups(report)) {
    for (const NamedPart& named : group.parts) {
      add(absl::StrCat(group.kind, " ", named.name), named.part->latency);
    }
  }
  return HtmlTable("percentiles", rows, "OK answers; - where there are too few to say");
}

std::string Errors(const LoadReport& report) {
  if (report.total.errors.empty()) return "<p id=\"errors\">No call failed.</p>\n";
  std::vector<std::vector<std::string>> rows = {{"code", "reason", "calls", "share"}};
  for (const auto& [error, count] : report.total.errors) {
    rows.push_back({error.first, error.second.empty() ? "-" : error.second, absl::StrCat(count),
                    absl::StrFormat("%.2f %%", 100.0 * static_cast<double>(count) /
                                                   static_cast<double>(report.total.sent))});
  }
  return HtmlTable("errors", rows, "Failed calls, which no percentile of OK answers holds");
}

std::string Bounds(const LoadReport& report) {
  if (report.thresholds.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"bound", "measured", ""}};
  for (const ThresholdOutcome& outcome : report.thresholds) {
    rows.push_back({outcome.text, ValueText(outcome), outcome.met ? "kept" : "missed"});
  }
  return HtmlTable("thresholds", rows, "Bounds that the run was asked to keep");
}

}  // namespace

std::string LoadPage(const LoadReport& report) {
  const std::string intro = absl::StrCat(
      MixName(report.options.mix), ", ", LoopText(report.options), ", ", report.options.lengths,
      ": ",
      absl::StrFormat("%.1f requests/s, %.0f tokens/s, %d of %d calls ok. Generator: busiest "
                      "thread %.0f %% of a core, %.2f cores. Verdict: ",
                      report.requests_per_s, report.tokens_per_s, report.total.ok, report.planned,
                      100 * report.cpu_share, report.cores),
      VerdictName(report.verdict), ".");
  return Page(absl::StrCat("Load test of ", report.options.layer), intro,
              absl::StrCat(Spectrum(report), OverTime(report), Split(report), Percentiles(report),
                           Bounds(report), Errors(report)));
}

}  // namespace headwise::client
