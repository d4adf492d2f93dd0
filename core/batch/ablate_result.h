// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BATCH_ABLATE_RESULT_H_
#define HEADWISE_CORE_BATCH_ABLATE_RESULT_H_

#include "core/batch/work_item.h"
#include "core/request.h"

namespace headwise {

// The answer to an ablation request from what its pass left behind; makes the prune plan. `item` is
// the request; its plan's sums are moved from.
AblateResult MakeAblateResult(WorkItem* item, WorkResult work);

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_ABLATE_RESULT_H_
