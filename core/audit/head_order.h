// SPDX-License-Identifier: Apache-2.0
// Finds the order in which heads were concatenated.
#ifndef HEADWISE_CORE_AUDIT_HEAD_ORDER_H_
#define HEADWISE_CORE_AUDIT_HEAD_ORDER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "core/audit/mistakes.h"
#include "core/reference/staged_layer.h"

namespace headwise {

// Heads beyond so many are not assigned: the unknowns are their square.
inline constexpr int64_t kMostAssignedHeads = 32;

// The order (as StagePlan::order) that brings the heads' outputs `tensors.z` of case `c` closest to
// `y` [N, d_out]: least squares over how much of head r stands at place s, then the best assignment
// by size. Rows with entries that aren't finite are left out. Absent where widths differ, for one
// head or too many, and where no row is finite.
std::optional<std::vector<int64_t>> FindHeadOrder(const AuditCase& c, const StageTensors& tensors,
                                                  const std::vector<double>& y);

}  // namespace headwise

#endif  // HEADWISE_CORE_AUDIT_HEAD_ORDER_H_
