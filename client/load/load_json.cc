// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_json.h"

#include <cmath>
#include <thread>

#include "headwise/version.h"
#include "nlohmann/json.hpp"

namespace headwise::client {
namespace {

using Json = nlohmann::ordered_json;

int64_t ToMicros(int64_t nanos) { return (nanos + 500) / 1000; }

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
               {"sent", report.total.sent},
               {"ok", report.total.ok},
               {"failed", report.total.failed}};
  if (report.options.warmup > 0) json["warmup"] = report.warmup;
  return json;
}

Json ErrorsJson(const LoadReport& report) {
  Json errors = Json::array();
  for (const auto& [error, count] : report.total.errors) {
    Json json = {{"code", error.first}};
    if (!error.second.empty()) json["reason"] = error.second;
    json["count"] = count;
    errors.push_back(std::move(json));
  }
  return errors;
}

Json SetupJson(const LoadReport& report) {
  Json layers = Json::array();
  for (const LayerSetup& layer : report.setup) {
    layers.push_back({{"name", layer.name},
                      {"dtype", layer.dtype},
                      {"kernel", layer.kernel},
                      {"d_model", layer.d_model},
                      {"heads", layer.heads},
                      {"kv_heads", layer.kv_heads}});
  }
  const LoadOptions& options = report.options;
  return {{"layers", std::move(layers)},
          {"servers", options.targets.size()},
          {"priority", options.priority},
          {"timeout_s", absl::ToDoubleSeconds(options.timeout)},
          {"schedule", options.schedule},
          {"repeat", options.repeat},
          {"generator",
           {{"version", kVersion},
            {"build", kBuildType},
            {"cpus", std::thread::hardware_concurrency()}}}};
}

void AddParts(const LoadReport& report, Json* json) {
  for (const PartGroup& group : PartGroups(report)) {
    Json list = Json::array();
    for (const NamedPart& named : group.parts) {
      list.push_back({{"name", named.name},
                      {"ok", named.part->ok},
                      {"failed", named.part->failed},
                      {"latency_us", PercentilesJson(named.part->latency)}});
    }
    (*json)[std::string(group.kind) + "s"] = std::move(list);
  }
}

Json ThresholdsJson(const LoadReport& report) {
  Json list = Json::array();
  for (const ThresholdOutcome& outcome : report.thresholds) {
    Json json = {{"text", outcome.text}, {"met", outcome.met}};
    // A time in microseconds, as everywhere here.
    if (outcome.value.has_value()) {
      json["value"] = Rounded(outcome.is_time ? *outcome.value / 1000 : *outcome.value);
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json FoundJson(const LoadReport& report) {
  Json trials = Json::array();
  for (const Trial& trial : report.found->trials) {
    trials.push_back({{"rate", Rounded(trial.rate)},
                      {"met", trial.outcome.met},
                      {"generator_limited", trial.outcome.limited},
                      {"confirming", trial.confirming}});
  }
  Json json = {{"bounds", report.options.find_rate_text}};
  // What only the generator kept from being larger is no figure of the server.
  if (!report.found->generator_limited) json["rate"] = Rounded(report.found->rate);
  json["confirmed"] = report.found->confirmed;
  json["generator_limited"] = report.found->generator_limited;
  json["trials"] = std::move(trials);
  return json;
}

Json RunsJson(const LoadReport& report) {
  Json list = Json::array();
  for (const RunResult& run : report.runs) {
    list.push_back({{"requests_per_s", Rounded(RequestsPerSecond(report.options, run))},
                    {"failed", run.record.failed},
                    {"latency_us", PercentilesJson(run.record.latency)}});
  }
  return list;
}

Json WindowsJson(const LoadReport& report) {
  Json list = Json::array();
  for (size_t run = 0; run < report.runs.size(); ++run) {
    const RunRecord& record = report.runs[run].record;
    const double seconds = static_cast<double>(record.window_ns) * 1e-9;
    for (size_t i = 0; i < record.windows.size(); ++i) {
      const Window& window = record.windows[i];
      Json latency = Json::array();
      for (const auto& [largest_ns, count] : window.latency.Buckets()) {
        latency.push_back({ToMicros(largest_ns), count});
      }
      list.push_back({{"run", run},
                      {"begin_s", Rounded(seconds * static_cast<double>(i))},
                      {"seconds", Rounded(seconds)},
                      {"ok", window.ok},
                      {"failed", window.failed},
                      {"tokens", window.tokens},
                      {"latency_us", std::move(latency)}});
    }
  }
  return list;
}

}  // namespace

std::string ReportJson(const LoadReport& report) {
  const LoadOptions& options = report.options;
  const RunRecord& total = report.total;
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
      {"errors", ErrorsJson(report)},
      {"requests_per_s", Rounded(report.requests_per_s)},
      {"tokens_per_s", Rounded(report.tokens_per_s)},
      {"latency_us", PercentilesJson(total.latency)},
      {"service_us", PercentilesJson(total.service)},
      {"send_delay_us", PercentilesJson(total.send_delay)},
      {"queue_us", PercentilesJson(total.queue)},
      {"compute_us", PercentilesJson(total.compute)},
  };
  // Failures apart: fast ones would flatter the percentiles, slow ones must not vanish.
  if (total.failed > 0) json["all_latency_us"] = PercentilesJson(total.all_latency);
  AddParts(report, &json);
  if (!report.thresholds.empty()) json["thresholds"] = ThresholdsJson(report);
  if (report.found.has_value()) json["find_rate"] = FoundJson(report);
  if (options.repeat > 1) json["runs"] = RunsJson(report);
  json["generator"] = {{"cpu_share", Rounded(report.cpu_share)},
                       {"cores", Rounded(report.cores)},
                       {"limited", report.verdict == Verdict::kGeneratorLimited}};
  json["verdict"] = VerdictName(report.verdict);
  json["setup"] = SetupJson(report);
  json["windows"] = WindowsJson(report);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace headwise::client
