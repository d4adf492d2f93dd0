// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/gauge.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <set>
#include <vector>

namespace headwise {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr char kUnknown[] = "unknown";

const prometheus::Histogram::BucketBoundaries& SecondsBuckets() {
  static const auto* const buckets = new prometheus::Histogram::BucketBoundaries{
      0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30};
  return *buckets;
}

MetricFamily OneFigure(const char* name, const char* help, MetricType type, double value) {
  ClientMetric metric;
  metric.counter.value = value;
  metric.gauge.value = value;
  return {name, help, type, {metric}};
}

// The engine's own counters, read when they are asked for.
class EngineFigures final : public prometheus::Collectable {
 public:
  explicit EngineFigures(const Engine* engine) : engine_(engine) {}

  std::vector<MetricFamily> Collect() const override {
    const EngineStats stats = engine_->stats();
    const std::vector<LayerInfo> layers = engine_->ListLayers();
    int64_t weight_bytes = 0;
    for (const LayerInfo& layer : layers) weight_bytes += layer.weight_bytes;
    const auto count = [](const char* name, const char* help, int64_t value) {
      return OneFigure(name, help, MetricType::Counter, static_cast<double>(value));
    };
    const auto gauge = [](const char* name, const char* help, int64_t value) {
      return OneFigure(name, help, MetricType::Gauge, static_cast<double>(value));
    };
    return {
        count("headwise_passes_total", "Passes that ran kernels.", stats.passes),
        count("headwise_pass_requests_total", "Requests that rode in passes.", stats.pass_requests),
        count("headwise_pass_tokens_total", "Query tokens that rode in passes.", stats.pass_tokens),
        count("headwise_dropped_total",
              "Requests that left before any kernel: expired or cancelled.",
              stats.dropped_expired + stats.dropped_cancelled),
        count("headwise_refused_total", "Requests refused because the queue was full.",
              stats.refused_full),
        gauge("headwise_queued_tokens", "Query tokens that wait.", stats.queued_tokens),
        gauge("headwise_layers", "Loaded layers.", static_cast<int64_t>(layers.size())),
        gauge("headwise_weights_bytes", "Parameters of all loaded layers.", weight_bytes),
        gauge("headwise_threads", "Compute threads.", engine_->cpu_budget().threads),
    };
  }

 private:
  const Engine* const engine_;
};

}  // namespace

const char* CodeName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted:
      return "ABORTED";
    case absl::StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss:
      return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "UNKNOWN";
  }
}

Metrics::Metrics(const Engine* engine, const std::string& version)
    : engine_(engine),
      requests_(prometheus::BuildCounter()
                    .Name("headwise_requests_total")
                    .Help("Calls answered, by layer, method and status code.")
                    .Register(registry_)),
      seconds_(prometheus::BuildHistogram()
                   .Name("headwise_request_seconds")
                   .Help("From the arrival of a call to its answer.")
                   .Register(registry_)),
      engine_figures_(std::make_unique<EngineFigures>(engine)) {
  prometheus::BuildGauge()
      .Name("headwise_build_info")
      .Help("1, with the version as label.")
      .Register(registry_)
      .Add({{"version", version}})
      .Set(1);
  MutexLock lock(&mu_);
  layers_[""];
  AddLayer(kUnknown);
}

Metrics::~Metrics() = default;

prometheus::Counter* Metrics::RequestCounter(const std::string& layer, const std::string& method,
                                             absl::StatusCode code) {
  prometheus::Counter*& counter = layers_[layer].requests[{method, code}];
  if (counter == nullptr) {
    counter = &requests_.Add({{"layer", layer}, {"method", method}, {"code", CodeName(code)}});
  }
  return counter;
}

prometheus::Histogram* Metrics::SecondsHistogram(const std::string& layer,
                                                 const std::string& method) {
  prometheus::Histogram*& histogram = layers_[layer].seconds[method];
  if (histogram == nullptr) {
    histogram = &seconds_.Add({{"layer", layer}, {"method", method}}, SecondsBuckets());
  }
  return histogram;
}

// The series exist from the start, so that their first increase is seen as one.
void Metrics::AddLayer(const std::string& layer) {
  for (const char* method : {"Forward", "Ablate"}) {
    RequestCounter(layer, method, absl::StatusCode::kOk);
  }
}

void Metrics::RemoveLayer(const std::string& layer) {
  const auto found = layers_.find(layer);
  for (const auto& [key, counter] : found->second.requests) requests_.Remove(counter);
  for (const auto& [method, histogram] : found->second.seconds) seconds_.Remove(histogram);
  layers_.erase(found);
}

void Metrics::RecordCall(absl::string_view layer, const char* method, absl::StatusCode code,
                         absl::Duration took) {
  MutexLock lock(&mu_);
  std::string label(layer);
  if (!layers_.contains(label)) label = kUnknown;
  RequestCounter(label, method, code)->Increment();
  SecondsHistogram(label, method)->Observe(absl::ToDoubleSeconds(took));
}

void Metrics::Refresh() {
  MutexLock lock(&mu_);
  std::set<std::string> loaded;
  for (const LayerInfo& layer : engine_->ListLayers()) loaded.insert(layer.name);
  for (const std::string& layer : loaded) {
    if (!layers_.contains(layer)) AddLayer(layer);
  }
  std::vector<std::string> gone;
  for (const auto& [layer, series] : layers_) {
    if (!layer.empty() && layer != kUnknown && !loaded.contains(layer)) gone.push_back(layer);
  }
  for (const std::string& layer : gone) RemoveLayer(layer);
}

std::string Metrics::Text() const {
  std::vector<MetricFamily> families = registry_.Collect();
  for (MetricFamily& family : engine_figures_->Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace headwise
