// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_LOAD_LOAD_PAGE_H_
#define HEADWISE_CLIENT_LOAD_LOAD_PAGE_H_

#include <string>

#include "client/load/load_report.h"

namespace headwise::client {

// One self-contained page: the latency spectrum, throughput and latency over time, where the time
// of a call goes, failures by reason, and the figures of the text report. Thread-safe.
std::string LoadPage(const LoadReport& report);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_LOAD_PAGE_H_
