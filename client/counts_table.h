// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_COUNTS_TABLE_H_
#define HEADWISE_CLIENT_COUNTS_TABLE_H_

#include <string>
#include <vector>

#include "client/report.h"
#include "core/format/head_comparison.h"
#include "headwise/v1/layer.pb.h"

namespace headwise::client {

// The counts of a layer, each with its unit and convention: parameters by matrix, work by stage,
// then scores and bytes. Counts of a later server that it doesn't know come last.
std::string CountsText(const std::vector<v1::Count>& counts, const Terminal& terminal);

// One wide head against several: a line for each head count, what changes and what doesn't.
std::string HeadComparisonText(const HeadComparison& comparison, const Terminal& terminal);

// Two readings that no single head gives.
std::string OneHotText(const OneHotReadings& readings);

// A count's id as people read it: "score elements", "MACs q".
std::string CountName(const std::string& id);

v1::Count ToWire(const Count& count);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_COUNTS_TABLE_H_
