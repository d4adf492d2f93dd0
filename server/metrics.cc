// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/gauge.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <numeric>
#include <set>
#include <vector>

#include "server/engine_figures.h"
#include "server/status.h"

namespace headwise {
namespace {

using prometheus::MetricFamily;

constexpr char kUnknown[] = "unknown";

const prometheus::Histogram::BucketBoundaries& SecondsBuckets() {
  static const auto* const buckets = new prometheus::Histogram::BucketBoundaries{
      0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30};
  return *buckets;
}

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

Metrics::Metrics(const Engine* engine, const std::string& version, MemoryFigures memory,
                 LiveCalls live_calls)
    : engine_(engine),
      requests_(prometheus::BuildCounter()
                    .Name("headwise_requests_total")
                    .Help("Calls answered, by layer, method and status code.")
                    .Register(registry_)),
      seconds_(prometheus::BuildHistogram()
                   .Name("headwise_request_seconds")
                   .Help("From the arrival of a call to its answer.")
                   .Register(registry_)),
      stages_(prometheus::BuildHistogram()
                  .Name("headwise_stage_seconds")
                  .Help("Stages of the calls that ran kernels: queue, pack, compute, encode.")
                  .Register(registry_)),
      tokens_(prometheus::BuildCounter()
                  .Name("headwise_goodput_tokens_total")
                  .Help("Query tokens of calls that were answered OK, and so in time.")
                  .Register(registry_)),
      refusals_(prometheus::BuildCounter()
                    .Name("headwise_refusals_total")
                    .Help("Calls refused for a limit or because the server isn't ready, by reason.")
                    .Register(registry_)),
      refusal_seconds_(prometheus::BuildHistogram()
                           .Name("headwise_refusal_seconds")
                           .Help("From a refused call's message to its status.")
                           .Register(registry_)
                           .Add({}, SecondsBuckets())),
      engine_figures_(MakeEngineFigures(engine, std::move(memory), std::move(live_calls))) {
  prometheus::BuildGauge()
      .Name("headwise_build_info")
      .Help("1, with the version and what it runs on as labels.")
      .Register(registry_)
      .Add({{"version", version},
            {"isa", IsaName()},
            {"kernel", KernelPathName(engine->kernel())},
            {"onednn", OneDnnVersion()}})
      .Set(1);
  for (const char* reason :
       {"QUEUE_FULL", "LAYER_QUEUE_FULL", "CLIENT_LIMIT", "REQUEST_MEMORY", "LAYER_MEMORY",
        "LIMIT_EXCEEDED", "NOT_READY", "NO_VALID_TOKEN", "NO_RIGHT"}) {
    refusals_.Add({{"reason", reason}});
  }
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
  const Series& series = found->second;
  for (const auto& [key, counter] : series.requests) requests_.Remove(counter);
  for (const auto& [method, histogram] : series.seconds) seconds_.Remove(histogram);
  for (const auto& [key, histogram] : series.stages) stages_.Remove(histogram);
  for (const auto& [method, counter] : series.tokens) tokens_.Remove(counter);
  layers_.erase(found);
}

void Metrics::ObserveStages(const std::string& layer, const CallRecord& call) {
  const PassInfo& pass = *call.pass;
  const std::pair<const char*, double> stages[] = {
      {"queue", static_cast<double>(pass.queue_us) * 1e-6},
      {"pack", static_cast<double>(pass.pack_us) * 1e-6},
      {"compute", static_cast<double>(pass.compute_us - pass.pack_us) * 1e-6},
      {"encode", absl::ToDoubleSeconds(call.encode)}};
  for (const auto& [stage, seconds] : stages) {
    prometheus::Histogram*& histogram = layers_[layer].stages[{call.method, stage}];
    if (histogram == nullptr) {
      histogram = &stages_.Add({{"layer", layer}, {"method", call.method}, {"stage", stage}},
                               SecondsBuckets());
    }
    histogram->Observe(seconds);
  }
}

// The reasons of these codes are a fixed set.
void Metrics::CountRefusal(const absl::Status& status, absl::Duration took) {
  if (absl::IsPermissionDenied(status)) return RecordDenied(status);
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return;
  refusals_.Add({{"reason", ReasonOf(status)}}).Increment();
  refusal_seconds_.Observe(absl::ToDoubleSeconds(took));
}

void Metrics::RecordDenied(const absl::Status& status) {
  refusals_.Add({{"reason", ReasonOf(status)}}).Increment();
}

void Metrics::Record(const CallRecord& call) {
  CountRefusal(call.status, call.total);
  MutexLock lock(&mu_);
  std::string label(call.layer);
  if (!layers_.contains(label)) label = kUnknown;
  RequestCounter(label, call.method, call.status.code())->Increment();
  SecondsHistogram(label, call.method)->Observe(absl::ToDoubleSeconds(call.total));
  if (call.pass == nullptr) return;
  ObserveStages(label, call);
  if (!call.status.ok()) return;
  prometheus::Counter*& tokens = layers_[label].tokens[call.method];
  if (tokens == nullptr) tokens = &tokens_.Add({{"layer", label}, {"method", call.method}});
  const std::vector<int64_t>& lengths = call.pass->lengths;
  tokens->Increment(
      static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
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
