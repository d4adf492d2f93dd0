// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace headwise::client {
namespace {

using Json = nlohmann::ordered_json;

// The generator is the limit if one of its threads is busy most of the time, or if calls leave so
// late that the delay is a real part of what is called latency.
constexpr double kBusyShare = 0.9;
constexpr double kDelayShareOfLatency = 0.1;
constexpr double kDelayWorthNamingNs = 1e6;

constexpr std::pair<const char*, uint32_t> kPercentiles[] = {
    {"p50", 5000}, {"p75", 7500}, {"p90", 9000}, {"p95", 9500}, {"p99", 9900}};

int64_t ToMicros(int64_t nanos) { return (nanos + 500) / 1000; }

Verdict Judge(const LoadReport& report, uint64_t never_sent) {
  if (report.ok == 0) return Verdict::kFail;
  const double delay_ns = report.send_delay.mean_ns();
  const bool late = report.options.open_loop && delay_ns > kDelayWorthNamingNs &&
                    delay_ns > kDelayShareOfLatency * report.latency.mean_ns();
  const bool limited = late || never_sent > 0 || report.cpu_share > kBusyShare;
  return limited ? Verdict::kGeneratorLimited : Verdict::kOk;
}

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "OK";
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

// Rounded to three decimals, so that the text stays readable.
double Rounded(double value) { return std::round(value * 1000) / 1000; }

Json PercentilesJson(const Distribution& values) {
  Json json = {{"count", values.count()}};
  if (values.count() == 0) return json;
  json["mean"] = Rounded(values.mean_ns() / 1000);
  for (const auto& [name, per_10000] : kPercentiles) {
    if (const auto value = values.SupportedPercentile(per_10000)) json[name] = ToMicros(*value);
  }
  json["max"] = ToMicros(values.max_ns());
  return json;
}

Json RequestsJson(const LoadReport& report) {
  Json json = {{"planned", report.planned},
               {"sent", report.sent},
               {"ok", report.ok},
               {"failed", report.failed}};
  if (report.options.warmup > 0) json["warmup"] = report.warmup;
  return json;
}

void AddSample(const Sample& sample, LoadReport* report) {
  report->send_delay.Add(sample.sent_ns - sample.planned_ns);
  report->all_latency.Add(sample.done_ns - sample.planned_ns);
  if (sample.code != absl::StatusCode::kOk) {
    ++report->failed;
    ++report->errors[absl::StatusCodeToString(sample.code)];
    return;
  }
  ++report->ok;
  report->tokens_per_s += sample.tokens;
  report->latency.Add(sample.done_ns - sample.planned_ns);
  report->service.Add(sample.done_ns - sample.sent_ns);
  if (sample.queue_us) report->queue.Add(int64_t{*sample.queue_us} * 1000);
  if (sample.compute_us) report->compute.Add(int64_t{*sample.compute_us} * 1000);
}

// What was run and what came of it, in words.
std::string Headline(const LoadReport& report) {
  const LoadOptions& options = report.options;
  std::string text = absl::StrCat(CleanText(options.layer), ": ", MixName(options.mix), ", ");
  if (options.open_loop) {
    absl::StrAppend(&text, "open loop at ", options.rate, " calls/s (",
                    options.poisson ? "poisson" : "constant", ")");
  } else {
    absl::StrAppend(&text, "closed loop of ", options.concurrency,
                    options.concurrency == 1 ? " caller" : " callers");
  }
  absl::StrAppend(&text, ", ", options.lengths, ", ", absl::FormatDuration(options.duration),
                  "\nconnections: ", options.connections, " asked, ", report.connections_measured,
                  " measured\nrequests: ", report.planned, " planned, ", report.sent, " sent, ",
                  report.ok, " ok, ", report.failed, " failed");
  if (report.warmup > 0) absl::StrAppend(&text, ", besides ", report.warmup, " to warm up");
  absl::StrAppend(&text, "\n",
                  absl::StrFormat("throughput: %.1f requests/s, %.0f tokens/s\n",
                                  report.requests_per_s, report.tokens_per_s));
  return text;
}

void AddRow(const char* title, const Distribution& values, Table* table) {
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
  std::vector<Table::Column> columns = {
      {""}, {"count", Table::Align::kRight}, {"mean", Table::Align::kRight}};
  for (const auto& [name, p] : kPercentiles) columns.push_back({name, Table::Align::kRight});
  columns.push_back({"max", Table::Align::kRight});
  Table table(columns);
  AddRow("latency", report.latency, &table);
  AddRow("service", report.service, &table);
  AddRow("send delay", report.send_delay, &table);
  AddRow("server: queue", report.queue, &table);
  AddRow("server: compute", report.compute, &table);
  if (report.failed > 0) AddRow("latency, all", report.all_latency, &table);
  return table.Render(terminal);
}

}  // namespace

LoadReport MakeReport(const LoadOptions& options, const RunResult& run, int connections_measured) {
  LoadReport report;
  report.options = options;
  report.connections_measured = connections_measured;
  report.sent = run.samples.size();
  report.planned = report.sent + run.never_sent;
  report.warmup = run.warmup;
  report.cpu_share = run.busiest_cpu_share;
  for (const Sample& sample : run.samples) AddSample(sample, &report);
  // A server that answers late has taken longer than the window for its work.
  const double seconds =
      std::max(absl::ToDoubleSeconds(options.duration),
               static_cast<double>(run.last_done_ns - run.window_begin_ns) * 1e-9);
  report.requests_per_s = static_cast<double>(report.ok) / seconds;
  report.tokens_per_s /= seconds;
  report.verdict = Judge(report, run.never_sent);
  return report;
}

std::string ReportJson(const LoadReport& report) {
  const LoadOptions& options = report.options;
  Json errors = Json::array();
  for (const auto& [code, count] : report.errors) {
    errors.push_back(Json{{"code", code}, {"count", count}});
  }
  Json json = {
      {"layer", options.layer},
      {"method", MixName(options.mix)},
      {"loop", options.open_loop ? "OPEN" : "CLOSED"},
      {"rate", options.rate},
      {"concurrency", options.concurrency},
      {"arrivals", !options.open_loop ? "NONE"
                   : options.poisson  ? "POISSON"
                                      : "CONSTANT"},
      {"lengths", options.lengths},
      {"duration_s", absl::ToDoubleSeconds(options.duration)},
      {"seed", options.seed},
      {"connections", {{"asked", options.connections}, {"measured", report.connections_measured}}},
      {"requests", RequestsJson(report)},
      {"errors", errors},
      {"requests_per_s", Rounded(report.requests_per_s)},
      {"tokens_per_s", Rounded(report.tokens_per_s)},
      {"latency_us", PercentilesJson(report.latency)},
      {"service_us", PercentilesJson(report.service)},
      {"send_delay_us", PercentilesJson(report.send_delay)},
      {"queue_us", PercentilesJson(report.queue)},
      {"compute_us", PercentilesJson(report.compute)},
  };
  // Failures apart: fast ones would flatter the percentiles, slow ones must not vanish.
  if (report.failed > 0) json["all_latency_us"] = PercentilesJson(report.all_latency);
  json["generator"] = {{"cpu_share", Rounded(report.cpu_share)},
                       {"limited", report.verdict == Verdict::kGeneratorLimited}};
  json["verdict"] = VerdictName(report.verdict);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ReportText(const LoadReport& report, const Terminal& terminal) {
  std::string text = absl::StrCat(Headline(report), "\n", TimesTable(report, terminal));
  for (const auto& [code, count] : report.errors) {
    absl::StrAppend(&text, "error ", code, ": ", count, "\n");
  }
  absl::StrAppend(&text,
                  absl::StrFormat("\ngenerator: busiest thread %.0f %% of a core; verdict %s\n",
                                  100 * report.cpu_share, VerdictName(report.verdict)));
  return text;
}

}  // namespace headwise::client
