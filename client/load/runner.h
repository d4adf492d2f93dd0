// SPDX-License-Identifier: Apache-2.0
// Runs a load test: sends each call when it is due, keeps what came of it.
#ifndef HEADWISE_CLIENT_LOAD_RUNNER_H_
#define HEADWISE_CLIENT_LOAD_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "client/load/arrivals.h"
#include "client/load/lengths.h"
#include "client/load/record.h"
#include "client/load/transport.h"

namespace headwise::client {

enum class Mix { kForward, kAblate, kMix };  // kMix: forward and ablate in turn

struct RunResult {
  RunRecord record;
  uint64_t warmup = 0;      // calls left out
  uint64_t never_sent = 0;  // found no place among those in flight before the window's end
  int64_t window_begin_ns = 0;
  int64_t last_done_ns = 0;
  double busiest_cpu_share = 0;  // CPU time of the generator's busiest thread / wall time
  double cores = 0;              // CPU time of the whole generator / wall time
};

// How far a run is, for the live line.
struct RunProgress {
  double elapsed_s = 0;
  uint64_t sent = 0, ok = 0, failed = 0;
};

// Latency counts from a call's planned time: a generator that waits for a stalled server would
// otherwise leave out exactly the calls that the stall hurts. Not thread-safe.
class Runner {
 public:
  struct Settings {
    Mix mix = Mix::kForward;
    size_t layers = 1;       // take turns
    size_t connections = 1;  // as the transport's: calls are dealt out to them in turn
    size_t servers = 1;      // to which the connections are dealt out in turn
    uint64_t warmup = 0;
    uint64_t max_in_flight = 0;  // 0: no limit. A call that is due waits for a place
    std::function<void(const RunProgress&)> progress;  // twice a second; may be empty
    // Asked after each measured call: whether to send no more. May be empty.
    std::function<bool(const Sample&)> give_up;
  };

  // All pointers outlive the runner. `record` is empty.
  Runner(Settings settings, Arrivals* arrivals, Lengths* lengths, Transport* transport,
         RunRecord record = {});

  // Until every call has ended. Call it once.
  RunResult Run();

 private:
  std::optional<int64_t> NextPlanned();
  void SendDue();
  void DropOverdue();  // calls that still wait for a place when the window ends
  void Send(int64_t planned_ns);
  int64_t NextWakeNs();
  void Record(const Completion& completion);
  void ReportProgress();
  bool HasPlace() const;

  const Settings settings_;
  Arrivals* const arrivals_;
  Lengths* const lengths_;
  Transport* const transport_;
  struct InFlight {
    int64_t planned_ns = 0;
    int64_t sent_ns = 0;
    Call call;
  };
  std::map<uint64_t, InFlight> in_flight_;
  bool given_up_ = false;
  RunResult result_;
  RunProgress progress_;
  int64_t next_progress_ns_ = 0;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_RUNNER_H_
