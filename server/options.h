// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_OPTIONS_H_
#define HEADWISE_SERVER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/engine.h"
#include "server/logging.h"

namespace headwise {

// NAME=DIR:LAYER[:DTYPE] of --load.
struct StartupLayer {
  std::string name;
  std::string dir;    // under the repository
  std::string layer;  // "[PART.]I"
  std::string dtype;  // "f32", "bf16", "int8"
};

// What the command line and the file of --config decide. The defaults here are the ones that --help
// prints.
struct ServerOptions {
  std::string listen = "127.0.0.1:8500";   // HOST:PORT or unix:PATH, several by commas
  std::string metrics = "127.0.0.1:8501";  // empty: no HTTP server
  std::string admin_listen;                // as listen; empty: no address of its own
  bool reflection = true;
  absl::Duration keepalive_time = absl::Minutes(1);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration min_ping_interval = absl::Seconds(10);
  int64_t max_concurrent_streams = 4096;
  int64_t max_header_bytes = 16 << 10;

  std::string repository;
  std::vector<StartupLayer> loads;
  bool demo = false;
  std::string demo_layer = "0";
  std::string save_dir;  // empty: SaveLayer is off
  bool strict_start = false;
  int64_t layer_budget_bytes = 0;  // 0: half of the memory that this process may use

  std::optional<int64_t> threads;
  KernelPath kernel = KernelPath::kAuto;
  bool pin_threads = false;
  absl::Duration batch_delay;

  int64_t max_batch_requests = EngineLimits().max_batch_requests;
  int64_t max_batch_tokens = EngineLimits().max_batch_tokens;
  int64_t queue_tokens = EngineLimits().queue_tokens;
  int64_t queue_bytes = EngineLimits().queue_bytes;
  int64_t layer_queue_tokens = EngineLimits().layer_queue_tokens;
  int64_t client_queue_tokens = EngineLimits().client_queue_tokens;
  int64_t client_queue_requests = EngineLimits().client_queue_requests;
  int64_t max_tokens = EngineLimits().max_tokens;
  int64_t max_heads = EngineLimits().max_heads;
  int64_t max_stream_requests = 16;
  int64_t max_output_bytes = EngineLimits().max_output_bytes;
  int64_t max_sequences = EngineLimits().max_sequences;
  int64_t max_ablations = EngineLimits().max_ablations;
  int64_t max_message_bytes = int64_t{256} << 20;
  int64_t request_budget_bytes = int64_t{2} << 30;
  int64_t max_upload_bytes = int64_t{8} << 30;
  absl::Duration upload_timeout = absl::Minutes(10);
  absl::Duration lame_duck;
  absl::Duration grace = absl::Seconds(30);

  // Paths of files; empty: none.
  std::string tls_cert, tls_key, tls_client_ca, token_file;

  LogLevel log_level = LogLevel::kInfo;
  absl::Duration slow_request;  // 0: none is logged

  std::string config;  // path of a file; empty: none
  bool help = false;
  bool version = false;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_OPTIONS_H_
