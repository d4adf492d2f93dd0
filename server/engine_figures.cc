// SPDX-License-Identifier: Apache-2.0
#include "server/engine_figures.h"

#include <prometheus/metric_family.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/cgroup.h"

namespace headwise {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily OneFigure(const char* name, const char* help, MetricType type, double value) {
  ClientMetric metric;
  metric.counter.value = value;
  metric.gauge.value = value;
  return {name, help, type, {metric}};
}

MetricFamily Count(const char* name, const char* help, int64_t value) {
  return OneFigure(name, help, MetricType::Counter, static_cast<double>(value));
}

MetricFamily Gauge(const char* name, const char* help, int64_t value) {
  return OneFigure(name, help, MetricType::Gauge, static_cast<double>(value));
}

MetricFamily Sizes(const char* name, const char* help, const SizeHistogram& sizes) {
  ClientMetric metric;
  uint64_t together = 0;
  for (size_t i = 0; i < SizeHistogram::kBuckets; ++i) {
    together += static_cast<uint64_t>(sizes.counts[i]);
    const bool last = i + 1 == SizeHistogram::kBuckets;
    const double bound =
        last ? std::numeric_limits<double>::infinity() : std::ldexp(1.0, static_cast<int>(i));
    metric.histogram.bucket.push_back({together, bound});
  }
  metric.histogram.sample_count = together;
  metric.histogram.sample_sum = static_cast<double>(sizes.sum);
  return {name, help, MetricType::Histogram, {metric}};
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

class EngineFigures final : public prometheus::Collectable {
 public:
  EngineFigures(const Engine* engine, Metrics::MemoryFigures memory, Metrics::LiveCalls live_calls)
      : engine_(engine), memory_(std::move(memory)), live_calls_(std::move(live_calls)) {}

  std::vector<MetricFamily> Collect() const override {
    const EngineStats stats = engine_->stats();
    std::vector<MetricFamily> families = Passes(stats);
    for (MetricFamily& family : Queue(stats)) families.push_back(std::move(family));
    families.push_back(Memory(stats));
    families.push_back(
        Gauge("headwise_memory_limit_bytes",
              "What this process may use: the tightest cgroup limit, or the machine.",
              MemoryLimitBytes({})));
    const CpuThrottling throttling = ReadCpuThrottling({});
    families.push_back(Count("headwise_throttled_periods_total",
                             "Periods in which the CPU quota ran out, since the cgroup began.",
                             throttling.throttled_periods));
    families.push_back(OneFigure(
        "headwise_throttled_seconds_total", "Time that the CPU quota took, since the cgroup began.",
        MetricType::Counter, static_cast<double>(throttling.throttled_us) * 1e-6));
    return families;
  }

 private:
  static std::vector<MetricFamily> Passes(const EngineStats& stats) {
    return {
        Count("headwise_passes_total", "Passes that ran kernels.", stats.passes),
        Count("headwise_pass_requests_total", "Requests that rode in passes.", stats.pass_requests),
        Count("headwise_pass_tokens_total", "Query tokens that rode in passes.", stats.pass_tokens),
        Count("headwise_interrupts_total", "Passes that ran inside a longer one.",
              stats.interrupts),
        Sizes("headwise_batch_requests", "Requests of a pass.", stats.batch_requests),
        Sizes("headwise_batch_tokens", "Query tokens of a pass.", stats.batch_tokens),
        Count("headwise_dropped_total",
              "Requests that left before any kernel: expired or cancelled.",
              stats.dropped_expired + stats.dropped_cancelled),
        Count("headwise_expired_total", "Requests whose deadline passed before any kernel.",
              stats.dropped_expired),
        Count("headwise_cancelled_total", "Requests called off before any kernel.",
              stats.dropped_cancelled),
        Count("headwise_refused_total", "Requests refused because the queue was full.",
              stats.refused_full),
    };
  }

  std::vector<MetricFamily> Queue(const EngineStats& stats) const {
    const std::vector<LayerInfo> layers = engine_->ListLayers();
    int64_t weight_bytes = 0;
    for (const LayerInfo& layer : layers) weight_bytes += layer.weight_bytes;
    return {
        Gauge("headwise_queued_tokens", "Query tokens that wait.", stats.queued_tokens),
        Gauge("headwise_queued_requests", "Requests that wait.", stats.queued_requests),
        Gauge("headwise_live_calls", "Calls accepted and not ended.",
              live_calls_ ? live_calls_() : 0),
        Gauge("headwise_layers", "Loaded layers.", static_cast<int64_t>(layers.size())),
        Gauge("headwise_weights_bytes", "Parameters of all loaded layers.", weight_bytes),
        Gauge("headwise_threads", "Compute threads.", engine_->cpu_budget().threads),
    };
  }

  MetricFamily Memory(const EngineStats& stats) const {
    std::map<std::string, int64_t> kinds;
    if (memory_) kinds = memory_();
    kinds["layers"] = stats.layer_bytes;
    kinds["passes"] = stats.pass_bytes;
    kinds["queue"] = stats.queued_bytes;
    kinds["resident"] = ResidentBytes();
    MetricFamily family{"headwise_memory_bytes",
                        "Memory by kind: layers in use with what is kept to save them, buffers of "
                        "passes, tensors that wait, requests and answers, uploads; resident is "
                        "the whole process.",
                        MetricType::Gauge,
                        {}};
    for (const auto& [kind, bytes] : kinds) {
      ClientMetric metric;
      metric.label = {{"kind", kind}};
      metric.gauge.value = static_cast<double>(bytes);
      family.metric.push_back(metric);
    }
    return family;
  }

  const Engine* const engine_;
  const Metrics::MemoryFigures memory_;
  const Metrics::LiveCalls live_calls_;
};

}  // namespace

std::unique_ptr<prometheus::Collectable> MakeEngineFigures(const Engine* engine,
                                                           Metrics::MemoryFigures memory,
                                                           Metrics::LiveCalls live_calls) {
  return std::make_unique<EngineFigures>(engine, std::move(memory), std::move(live_calls));
}

}  // namespace headwise
