// SPDX-License-Identifier: Apache-2.0
// What a load test found, for people; as JSON in load_json.h, as a page in load_page.h.
#ifndef HEADWISE_CLIENT_LOAD_LOAD_REPORT_H_
#define HEADWISE_CLIENT_LOAD_LOAD_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/load/find_rate.h"
#include "client/load/options.h"
#include "client/load/runner.h"
#include "client/load/statistics.h"
#include "client/report.h"

namespace headwise::client {

enum class Verdict {
  kOk,
  kThresholdMissed,
  kGeneratorLimited,  // the figures are the generator's, not the server's
  kFail,              // no call succeeded
};

// What GetLayer said of a layer before the run.
struct LayerSetup {
  std::string name, dtype, kernel;
  uint32_t d_model = 0, heads = 0, kv_heads = 0;
};

struct LoadReport {
  LoadOptions options;
  std::vector<LayerSetup> setup;
  int connections_measured = 0;
  uint64_t planned = 0, warmup = 0;
  RunRecord total;              // all runs, without their windows
  std::vector<RunResult> runs;  // one, or as many as --repeat asked for
  double requests_per_s = 0;    // OK answers
  double tokens_per_s = 0;      // of OK answers
  double cpu_share = 0;  // of the generator's busiest thread, in the run where it was largest
  double cores = 0;      // of the whole generator, mean over the runs
  std::vector<ThresholdOutcome> thresholds;
  std::optional<FoundRate> found;  // of a search; the runs are those that confirmed the rate
  Verdict verdict = Verdict::kOk;
};

// The percentiles of a report, in ten-thousandths.
inline constexpr std::pair<const char*, uint32_t> kPercentiles[] = {
    {"p50", 5000}, {"p75", 7500}, {"p90", 9000}, {"p95", 9500}, {"p99", 9900}};

// `runs` isn't empty.
LoadReport MakeReport(const LoadOptions& options, std::vector<RunResult> runs,
                      int connections_measured);

// OK answers a second in a run: of its window, or longer where the last answer came after it.
double RequestsPerSecond(const LoadOptions& options, const RunResult& run);

const char* VerdictName(Verdict verdict);
const char* MixName(Mix mix);  // "FORWARD", "ABLATE", "MIX"
// "closed loop of 4 callers", "open loop at 100 calls/s (constant)".
std::string LoopText(const LoadOptions& options);
// "18.2 ms", "0.4 %", "512.0/s"; "too few calls" for none.
std::string ValueText(const ThresholdOutcome& outcome);

// The parts of a run that are worth telling apart, by name: those of the schedule, the layers, the
// servers and the methods, where there is more than one.
struct NamedPart {
  std::string name;
  const Part* part;
};
struct PartGroup {
  const char* kind;  // "step", "layer", "server", "method"
  std::vector<NamedPart> parts;
};
std::vector<PartGroup> PartGroups(const LoadReport& report);

std::string ReportText(const LoadReport& report, const Terminal& terminal);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_LOAD_REPORT_H_
