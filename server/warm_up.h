// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_WARM_UP_H_
#define HEADWISE_SERVER_WARM_UP_H_

#include "absl/status/status.h"
#include "core/engine.h"

namespace headwise {

// One forward of zeros through a loaded layer, so that the first caller finds its weights in memory
// and its kernels run in. Waits for it; the forward's error if it fails.
absl::Status WarmUp(Engine* engine, const LayerInfo& layer);

}  // namespace headwise

#endif  // HEADWISE_SERVER_WARM_UP_H_
