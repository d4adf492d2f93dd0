// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_COUNTS_TABLE_H_
#define HEADWISE_CLIENT_COUNTS_TABLE_H_

#include <string>
#include <vector>

#include "client/report.h"
#include "headwise/v1/layer.pb.h"

namespace headwise::client {

// The counts of a layer, each with its unit and convention.
std::string CountsTable(const std::vector<v1::Count>& counts, const Terminal& terminal);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_COUNTS_TABLE_H_
