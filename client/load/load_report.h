// SPDX-License-Identifier: Apache-2.0
// What a load test found, as JSON and for people.
#ifndef HEADWISE_CLIENT_LOAD_LOAD_REPORT_H_
#define HEADWISE_CLIENT_LOAD_LOAD_REPORT_H_

#include <cstdint>
#include <map>
#include <string>

#include "client/load/options.h"
#include "client/load/runner.h"
#include "client/load/statistics.h"
#include "client/report.h"

namespace headwise::client {

enum class Verdict {
  kOk,
  kGeneratorLimited,  // the figures are the generator's, not the server's
  kFail,              // no call succeeded
};

struct LoadReport {
  LoadOptions options;
  int connections_measured = 0;
  uint64_t planned = 0, sent = 0, ok = 0, failed = 0, warmup = 0;
  std::map<std::string, uint64_t> errors;  // by status code's name
  double requests_per_s = 0;               // OK answers
  double tokens_per_s = 0;                 // of OK answers
  Distribution latency;                    // OK answers, from the planned send to the answer
  Distribution all_latency;                // failed ones, too
  Distribution service;                    // OK answers, from the actual send
  Distribution send_delay;                 // from planned to actual send, every call
  Distribution queue, compute;             // OK answers, the server's own figures
  double cpu_share = 0;                    // of the generator's busiest thread
  Verdict verdict = Verdict::kOk;
};

LoadReport MakeReport(const LoadOptions& options, const RunResult& run, int connections_measured);

// One object, one line.
std::string ReportJson(const LoadReport& report);

std::string ReportText(const LoadReport& report, const Terminal& terminal);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_LOAD_REPORT_H_
