// SPDX-License-Identifier: Apache-2.0
// What came of the calls of a run, added up as they end.
#ifndef HEADWISE_CLIENT_LOAD_RECORD_H_
#define HEADWISE_CLIENT_LOAD_RECORD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/load/schedule.h"
#include "client/load/statistics.h"

namespace headwise::client {

// One measured call. Times are ns since the start of the run.
struct Sample {
  int64_t planned_ns = 0;
  int64_t sent_ns = 0;
  int64_t done_ns = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;  // the server's own word for a failure, where it gave one
  uint32_t tokens = 0;
  size_t layer = 0, server = 0, method = 0;  // which of those that the run was given
  std::optional<uint32_t> queue_us;
  std::optional<uint32_t> compute_us;

  bool ok() const { return code == absl::StatusCode::kOk; }
};

// A part of a run: calls planned in a piece of the schedule, to one layer, …
struct Part {
  uint64_t ok = 0, failed = 0;
  uint64_t tokens = 0;   // of OK answers
  Distribution latency;  // of OK answers, from the planned send

  void Add(const Sample& sample);
  void Merge(const Part& other);
};

// A stretch of the measured window.
struct Window {
  uint64_t ok = 0, failed = 0, tokens = 0;          // answers that came in it
  Distribution latency{Distribution::kCoarseBits};  // OK answers to calls planned in it
};

// Sums of a run's samples. Not thread-safe.
struct RunRecord {
  // Windows are `window_ns` long; calls are told apart by the schedule's pieces if it has several.
  RunRecord(int64_t window_length_ns, std::optional<RateSchedule> rates)
      : window_ns(window_length_ns), schedule(std::move(rates)) {}
  RunRecord() : RunRecord(1'000'000'000, std::nullopt) {}

  // `window_begin_ns`: when the measured window began.
  void Add(const Sample& sample, int64_t window_begin_ns);

  // Everything but the windows, whose times are those of one run.
  void Merge(const RunRecord& other);

  int64_t window_ns;
  std::optional<RateSchedule> schedule;
  uint64_t sent = 0, ok = 0, failed = 0, tokens = 0;
  std::map<std::pair<std::string, std::string>, uint64_t> errors;  // by code's name and reason
  Distribution latency;         // OK answers, from the planned send to the answer
  Distribution all_latency;     // failed ones, too
  Distribution service;         // OK answers, from the actual send
  Distribution send_delay;      // from planned to actual send, every call
  Distribution queue, compute;  // OK answers, the server's own figures
  std::vector<Window> windows;  // the last one may hold answers that came after the window
  std::vector<Part> steps, layers, servers, methods;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_RECORD_H_
