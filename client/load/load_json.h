// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_LOAD_LOAD_JSON_H_
#define HEADWISE_CLIENT_LOAD_LOAD_JSON_H_

#include <string>

#include "client/load/load_report.h"

namespace headwise::client {

// One object, one line. Besides the figures of the whole: `setup` (what was loaded, by what
// build), `steps`, `layers`, `servers`, `methods` where there are several, `thresholds`,
// `find_rate`, `runs` where the test was repeated, and `windows`: the run in stretches of time,
// each with its latencies as pairs [largest of the bucket in us, calls], by which `compare` tells
// chance from change.
std::string ReportJson(const LoadReport& report);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_LOAD_JSON_H_
