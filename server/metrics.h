// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_METRICS_H_
#define HEADWISE_SERVER_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/engine.h"

namespace headwise {

// "OK", "INVALID_ARGUMENT", …: the label `code`.
const char* CodeName(absl::StatusCode code);

// One call, or one request of a stream, that has ended.
struct CallRecord {
  absl::string_view layer;  // as the caller wrote it; "" where the method has none
  const char* method;       // a string literal
  const absl::Status& status;
  absl::Duration total;
  const PassInfo* pass = nullptr;  // null: no kernel ran
  absl::Duration encode;
};

// What /metrics shows. Labels are layer, method, stage, code, reason and kind only; `layer` is the
// name of a loaded layer, "" for methods without one, and "unknown" for every other name a caller
// may send, so that series stay few. The series of a layer go with it. Thread-safe.
class Metrics {
 public:
  // Bytes by kind, read at each scrape; beside what the engine knows.
  using MemoryFigures = std::function<std::map<std::string, int64_t>()>;

  // Calls that have been accepted and not ended, read at each scrape.
  using LiveCalls = std::function<int64_t()>;

  // `engine` must outlive it. `version` is the server's.
  Metrics(const Engine* engine, const std::string& version, MemoryFigures memory = {},
          LiveCalls live_calls = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void Record(const CallRecord& call);

  // A call that ended before any handler saw it, for want of a token or a right.
  void RecordDenied(const absl::Status& status);

  // The set of loaded layers may have changed.
  void Refresh();

  // The Prometheus text format.
  std::string Text() const;

 private:
  struct Series {
    std::map<std::pair<std::string, absl::StatusCode>, prometheus::Counter*> requests;
    std::map<std::string, prometheus::Histogram*> seconds;                         // by method
    std::map<std::pair<std::string, std::string>, prometheus::Histogram*> stages;  // method, stage
    std::map<std::string, prometheus::Counter*> tokens;                            // by method
  };
  prometheus::Counter* RequestCounter(const std::string& layer, const std::string& method,
                                      absl::StatusCode code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  prometheus::Histogram* SecondsHistogram(const std::string& layer, const std::string& method)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ObserveStages(const std::string& layer, const CallRecord& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountRefusal(const absl::Status& status, absl::Duration took);
  void AddLayer(const std::string& layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveLayer(const std::string& layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Engine* const engine_;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& seconds_;
  prometheus::Family<prometheus::Histogram>& stages_;
  prometheus::Family<prometheus::Counter>& tokens_;
  prometheus::Family<prometheus::Counter>& refusals_;
  prometheus::Histogram& refusal_seconds_;
  std::unique_ptr<prometheus::Collectable> engine_figures_;

  Mutex mu_;
  std::map<std::string, Series> layers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_METRICS_H_
