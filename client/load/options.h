// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_LOAD_OPTIONS_H_
#define HEADWISE_CLIENT_LOAD_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/channel_security.h"
#include "client/flags.h"
#include "client/load/runner.h"
#include "client/load/schedule.h"
#include "client/load/threshold.h"

namespace headwise::client {

// The command line of headwise-load, read.
struct LoadOptions {
  std::string layer;                // as given: one name, or several with commas
  std::vector<std::string> layers;  // in turn
  std::vector<std::string> targets;
  absl::Duration timeout;
  absl::Duration duration;
  bool open_loop = false;
  double rate = 0;           // calls a second; open loop: the mean of the schedule
  std::string schedule;      // open loop: steps and ramps as text, or empty: `rate` throughout
  bool poisson = false;      // open loop
  uint32_t concurrency = 0;  // closed loop: callers; open loop: most in flight, 0 for no limit
  uint32_t connections = 1;
  std::string client_id;
  ChannelSecurity security;
  int32_t priority = 0;
  std::string lengths;
  Mix mix = Mix::kForward;
  uint32_t seed = 0;
  uint32_t warmup = 0;
  uint32_t repeat = 1;  // runs, one after the other
  std::vector<Threshold> thresholds;
  std::vector<Threshold> find_rate;  // not empty: search for the rate that keeps these
  std::string find_rate_text;
  std::string json;  // a file, "-" for standard output, or empty
  std::string html;  // a file, or empty

  // Of an open loop.
  RateSchedule rates() const;
};

const std::vector<Flag>& LoadFlags();

// Usage errors, and what reading the files of TLS and tokens gives.
absl::StatusOr<LoadOptions> ReadLoadOptions(const Args& args);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_OPTIONS_H_
