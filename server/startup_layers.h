// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_STARTUP_LAYERS_H_
#define HEADWISE_SERVER_STARTUP_LAYERS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/layer_loader.h"
#include "server/options.h"

namespace headwise {

// A layer that --load or --demo asks for.
struct StartupJob {
  std::string name;
  std::function<absl::StatusOr<LayerInfo>(LayerLoader*)> load;
};

// In the order of loading: --demo's, then --load's. Demo checkpoints that the repository hasn't are
// left out.
std::vector<StartupJob> StartupJobs(const ServerOptions& options, const LayerLoader& loader);

std::vector<std::string> StartupNames(const ServerOptions& options, const LayerLoader& loader);

}  // namespace headwise

#endif  // HEADWISE_SERVER_STARTUP_LAYERS_H_
