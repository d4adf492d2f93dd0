// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace headwise::client {
namespace {

// The generator is the limit if one of its threads is busy most of the time, or if calls leave so
// late that the delay is a real part of what is called latency.
constexpr double kBusyShare = 0.9;
constexpr double kDelayShareOfLatency = 0.1;
constexpr double kDelayWorthNamingNs = 1e6;

Verdict Judge(const LoadReport& report) {
  if (report.total.ok == 0) return Verdict::kFail;
  const double delay_ns = report.total.send_delay.mean_ns();
  const bool late = report.options.open_loop && delay_ns > kDelayWorthNamingNs &&
                    delay_ns > kDelayShareOfLatency * report.total.latency.mean_ns();
  if (late || report.planned > report.total.sent || report.cpu_share > kBusyShare) {
    return Verdict::kGeneratorLimited;
  }
  const bool missed = std::any_of(report.thresholds.begin(), report.thresholds.end(),
                                  [](const ThresholdOutcome& outcome) { return !outcome.met; });
  return missed ? Verdict::kThresholdMissed : Verdict::kOk;
}

double SecondsOf(const LoadOptions& options, const RunResult& run) {
  // A server that answers late has taken longer than the window for its work.
  return std::max(absl::ToDoubleSeconds(options.duration),
                  static_cast<double>(run.last_done_ns - run.window_begin_ns) * 1e-9);
}

// What was run and what came of it, in words.
std::string Headline(const LoadReport& report) {
  const LoadOptions& options = report.options;
  std::string text =
      absl::StrCat(CleanText(options.layer), ": ", MixName(options.mix), ", ", LoopText(options),
                   ", ", CleanText(options.lengths), ", ", absl::FormatDuration(options.duration));
  if (options.repeat > 1) absl::StrAppend(&text, ", ", options.repeat, " runs");
  absl::StrAppend(&text, "\nconnections: ", options.connections, " asked, ",
                  report.connections_measured, " measured\nrequests: ", report.planned,
                  " planned, ", report.total.sent, " sent, ", report.total.ok, " ok, ",
                  report.total.failed, " failed");
  if (report.warmup > 0) absl::StrAppend(&text, ", besides ", report.warmup, " to warm up");
  absl::StrAppend(&text, "\n",
                  absl::StrFormat("throughput: %.1f requests/s, %.0f tokens/s\n",
                                  report.requests_per_s, report.tokens_per_s));
  return text;
}

std::vector<Table::Column> TimeColumns(const char* first) {
  std::vector<Table::Column> columns = {
      {first}, {"count", Table::Align::kRight}, {"mean", Table::Align::kRight}};
  for (const auto& [name, p] : kPercentiles) columns.push_back({name, Table::Align::kRight});
  columns.push_back({"max", Table::Align::kRight});
  return columns;
}

void AddRow(const std::string& title, const Distribution& values, Table* table) {
  if (values.count() == 0) return;
  std::vector<std::string> cells = {title, absl::StrCat(values.count()),
                                    HumanMicros(values.mean_ns() / 1000)};
  for (const auto& [name, per_10000] : kPercentiles) {
    const auto value = values.SupportedPercentile(per_10000);
    cells.push_back(value ? HumanMicros(static_cast<double>(*value) / 1000) : "-");
  }
  cells.push_back(HumanMicros(static_cast<double>(values.max_ns()) / 1000));
  table->Add(std::move(cells));
}

std::string TimesTable(const LoadReport& report, const Terminal& terminal) {
  Table table(TimeColumns(""));
  const RunRecord& total = report.total;
  AddRow("latency", total.latency, &table);
  AddRow("service", total.service, &table);
  AddRow("send delay", total.send_delay, &table);
  AddRow("server: queue", total.queue, &table);
  AddRow("server: compute", total.compute, &table);
  if (total.failed > 0) AddRow("latency, all", total.all_latency, &table);
  return table.Render(terminal);
}

std::string PartsText(const LoadReport& report, const Terminal& terminal) {
  std::string text;
  for (const PartGroup& group : PartGroups(report)) {
    std::vector<Table::Column> columns = TimeColumns(group.kind);
    columns.push_back({"failed", Table::Align::kRight});
    Table table(columns);
    for (const NamedPart& named : group.parts) AddRow(named.name, named.part->latency, &table);
    absl::StrAppend(&text, "\nlatency by ", group.kind, "\n", table.Render(terminal));
  }
  return text;
}

std::string FoundText(const FoundRate& found, const std::string& bounds) {
  std::string text = absl::StrCat("\nsearch for the rate that keeps ", bounds, ":\n");
  for (const Trial& trial : found.trials) {
    absl::StrAppendFormat(&text, "  %9.1f calls/s  %s%s\n", trial.rate,
                          trial.outcome.limited ? "generator limited"
                          : trial.outcome.met   ? "kept"
                                                : "missed",
                          trial.confirming ? ", to confirm" : "");
  }
  if (found.generator_limited) {
    return absl::StrCat(text, "no claim: the generator was the limit before the server\n");
  }
  if (found.rate == 0) return absl::StrCat(text, "no rate kept the bounds\n");
  return absl::StrCat(text, absl::StrFormat("largest rate: %.1f calls/s, %s\n", found.rate,
                                            found.confirmed ? "confirmed" : "not confirmed"));
}

PartGroup Group(const char* kind, const std::vector<std::string>& names,
                const std::vector<Part>& parts) {
  PartGroup group{kind, {}};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].ok + parts[i].failed == 0) continue;
    group.parts.push_back({i < names.size() ? names[i] : absl::StrCat(i), &parts[i]});
  }
  return group;
}

}  // namespace

double RequestsPerSecond(const LoadOptions& options, const RunResult& run) {
  return static_cast<double>(run.record.ok) / SecondsOf(options, run);
}

LoadReport MakeReport(const LoadOptions& options, std::vector<RunResult> runs,
                      int connections_measured) {
  LoadReport report;
  report.options = options;
  report.connections_measured = connections_measured;
  double seconds = 0;
  for (const RunResult& run : runs) {
    report.total.Merge(run.record);
    report.planned += run.record.sent + run.never_sent;
    report.warmup += run.warmup;
    report.cpu_share = std::max(report.cpu_share, run.busiest_cpu_share);
    report.cores += run.cores / static_cast<double>(runs.size());
    seconds += SecondsOf(options, run);
  }
  report.requests_per_s = static_cast<double>(report.total.ok) / seconds;
  report.tokens_per_s = static_cast<double>(report.total.tokens) / seconds;
  for (const Threshold& threshold : options.thresholds) {
    report.thresholds.push_back(Check(threshold, report.total, report.requests_per_s));
  }
  report.runs = std::move(runs);
  report.verdict = Judge(report);
  return report;
}

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "OK";
    case Verdict::kThresholdMissed:
      return "THRESHOLD_MISSED";
    case Verdict::kGeneratorLimited:
      return "GENERATOR_LIMITED";
    case Verdict::kFail:
      return "FAIL";
  }
  return "";
}

const char* MixName(Mix mix) {
  switch (mix) {
    case Mix::kForward:
      return "FORWARD";
    case Mix::kAblate:
      return "ABLATE";
    case Mix::kMix:
      return "MIX";
  }
  return "";
}

std::string LoopText(const LoadOptions& options) {
  if (!options.open_loop) {
    return absl::StrCat("closed loop of ", options.concurrency,
                        options.concurrency == 1 ? " caller" : " callers");
  }
  const std::string rate =
      options.schedule.empty() ? absl::StrFormat("%.6g", options.rate) : options.schedule;
  return absl::StrCat("open loop at ", rate, " calls/s (", options.poisson ? "poisson" : "constant",
                      ")");
}

std::string ValueText(const ThresholdOutcome& outcome) {
  if (!outcome.value.has_value()) return "too few calls";
  if (outcome.is_time) return HumanMicros(*outcome.value / 1000);
  const bool share = absl::string_view(outcome.text).substr(0, 6) == "errors";
  return share ? absl::StrFormat("%.2f %%", 100 * *outcome.value)
               : absl::StrFormat("%.1f/s", *outcome.value);
}

std::vector<PartGroup> PartGroups(const LoadReport& report) {
  std::vector<std::string> steps;
  if (report.options.open_loop) {
    const RateSchedule rates = report.options.rates();
    for (const RateSchedule::Piece& piece : rates.pieces()) {
      steps.push_back(absl::StrCat(RateText(piece), "/s for ", piece.seconds, " s"));
    }
  }
  std::vector<PartGroup> groups;
  for (PartGroup group : {Group("step", steps, report.total.steps),
                          Group("layer", report.options.layers, report.total.layers),
                          Group("server", report.options.targets, report.total.servers),
                          Group("method", {"FORWARD", "ABLATE"}, report.total.methods)}) {
    if (group.parts.size() > 1) groups.push_back(std::move(group));
  }
  return groups;
}

std::string ReportText(const LoadReport& report, const Terminal& terminal) {
  std::string text = absl::StrCat(Headline(report), "\n", TimesTable(report, terminal));
  absl::StrAppend(&text, PartsText(report, terminal));
  for (const auto& [error, count] : report.total.errors) {
    absl::StrAppend(&text, "error ", error.first, error.second.empty() ? "" : " ",
                    CleanText(error.second), ": ", count, "\n");
  }
  if (report.found.has_value()) {
    absl::StrAppend(&text, FoundText(*report.found, report.options.find_rate_text));
  }
  for (const ThresholdOutcome& outcome : report.thresholds) {
    absl::StrAppend(&text, "threshold ", outcome.text, ": ", outcome.met ? "kept" : "missed", ", ",
                    ValueText(outcome), "\n");
  }
  absl::StrAppend(
      &text, absl::StrFormat("\ngenerator: busiest thread %.0f %% of a core, %.2f cores in all; "
                             "verdict %s\n",
                             100 * report.cpu_share, report.cores, VerdictName(report.verdict)));
  return text;
}

}  // namespace headwise::client
