// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_STORED_PARTS_H_
#define HEADWISE_SERVER_STORED_PARTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/layer/derive.h"
#include "server/layer_loader.h"

namespace headwise {

// The numbers that the loaded layer `name` was made from; reads files. NOT_FOUND, what ReadStored
// and UnpackWeights give.
absl::StatusOr<LayerParts> ReadParts(const LayerLoader& loader, const std::string& name);

}  // namespace headwise

#endif  // HEADWISE_SERVER_STORED_PARTS_H_
