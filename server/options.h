// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_OPTIONS_H_
#define HEADWISE_SERVER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/engine.h"

namespace headwise {

// NAME=DIR:LAYER[:DTYPE] of --load.
struct StartupLayer {
  std::string name;
  std::string dir;    // under the repository
  std::string layer;  // "[PART.]I"
  std::string dtype;  // "f32", "bf16", "int8"
};

// What the command line decides. The defaults here are the ones that --help prints.
struct ServerOptions {
  std::string listen = "127.0.0.1:8500";
  std::string metrics = "127.0.0.1:8501";  // empty: no HTTP server
  bool reflection = true;

  std::string repository;
  std::vector<StartupLayer> loads;
  bool demo = false;
  std::string demo_layer = "0";
  std::string save_dir;  // empty: SaveLayer is off

  std::optional<int64_t> threads;
  KernelPath kernel = KernelPath::kAuto;

  int64_t max_batch_requests = EngineLimits().max_batch_requests;
  int64_t max_batch_tokens = EngineLimits().max_batch_tokens;
  int64_t queue_tokens = EngineLimits().queue_tokens;
  int64_t max_output_bytes = EngineLimits().max_output_bytes;
  int64_t max_sequences = EngineLimits().max_sequences;
  int64_t max_ablations = EngineLimits().max_ablations;
  int64_t max_message_bytes = int64_t{256} << 20;
  int64_t request_budget_bytes = int64_t{2} << 30;
  int64_t max_upload_bytes = int64_t{8} << 30;
  absl::Duration upload_timeout = absl::Minutes(10);
  absl::Duration grace = absl::Seconds(30);

  bool help = false;
  bool version = false;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_OPTIONS_H_
