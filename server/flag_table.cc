// SPDX-License-Identifier: Apache-2.0
#include "server/flag_table.h"

namespace headwise {
namespace {

using O = ServerOptions;

// protobuf's ceiling for one message, less room for what surrounds the tensor bytes.
constexpr int64_t kMessageCeiling = (int64_t{2} << 30) - (int64_t{1} << 20);
constexpr int64_t kManyBytes = int64_t{1} << 50;
constexpr int64_t kManyTokens = int64_t{1} << 40;

std::vector<Flag> ListenFlags() {
  return {
      {"listen", "HOST:PORT|unix:PATH[,…]", &O::listen,
       "gRPC; port 0: the system chooses, and it is printed"},
      {"admin-listen", "HOST:PORT|unix:PATH[,…]", &O::admin_listen,
       "addresses that alone take the calls of the right admin"},
      {"reflection", "", &O::reflection, "serve gRPC server reflection"},
      {"keepalive-time", "DURATION", &O::keepalive_time,
       "ping a connection that has been silent for that long"},
      {"keepalive-timeout", "DURATION", &O::keepalive_timeout,
       "a connection that doesn't answer a ping for that long is closed"},
      {"min-ping-interval", "DURATION", &O::min_ping_interval,
       "a client that pings more often is sent away"},
      {"max-concurrent-streams", "N", &O::max_concurrent_streams,
       "calls under way on one connection; further ones wait with the client", 1, 1 << 30, "call"},
      {"max-header-bytes", "BYTES", &O::max_header_bytes, "metadata of one call", 1024, 1 << 24,
       "byte"}};
}

std::vector<Flag> SecurityFlags() {
  return {{"tls-cert", "FILE", &O::tls_cert,
           "TLS: the server's certificate and those between it and its root, in PEM"},
          {"tls-key", "FILE", &O::tls_key, "its private key in PEM, not encrypted"},
          {"tls-client-ca", "FILE", &O::tls_client_ca,
           "mutual TLS: who signs the certificates that callers must bring"},
          {"token-file", "FILE", &O::token_file,
           "bearer tokens that are let in, a line each: forward|analyze|admin TOKEN"}};
}

std::vector<Flag> LayerFlags() {
  return {
      {"repository", "DIR", &O::repository, "folder of the checkpoints that can be loaded"},
      {"load", "NAME=DIR:LAYER[:DTYPE]", &O::loads,
       "load a layer before the server is ready; may be repeated"},
      {"demo", "", &O::demo,
       "load two-head and two-head-unequal, and minilm and smollm2 where the repository has them"},
      {"demo-layer", "[PART.]I", &O::demo_layer, "which layer of minilm --demo loads"},
      {"strict-start", "", &O::strict_start,
       "end if a layer given at start-up fails; else the server serves the rest and isn't ready"},
      {"layer-budget-bytes", "BYTES", &O::layer_budget_bytes,
       "parameters of all layers; 0: half of the memory that this process may use", 0, kManyBytes,
       "byte"},
      {"max-heads", "N", &O::max_heads, "heads of one layer", 1, 1 << 20, "head"},
      {"save-dir", "DIR", &O::save_dir, "folder that SaveLayer writes to; without it it is off"},
      {"max-upload-bytes", "BYTES", &O::max_upload_bytes, "all uploads under way together", 1,
       kManyBytes, "byte"},
      {"upload-timeout", "DURATION", &O::upload_timeout, "from an upload's first message on"}};
}

std::vector<Flag> ComputeFlags() {
  return {{"threads", "N", &O::threads,
           "compute threads; else OMP_NUM_THREADS, else CPU quota, cpuset and affinity", 1, 1024},
          {"pin-threads", "", &O::pin_threads, "each compute thread stays on a CPU of its own"},
          {"kernel", "auto|brgemm|primitive", &O::kernel, "force a kernel path"},
          {"max-batch-requests", "N", &O::max_batch_requests,
           "requests in one pass; 0: no limit, 1: no batching", 0, 1 << 20, "request"},
          {"max-batch-tokens", "N", &O::max_batch_tokens,
           "query tokens in one pass; a larger request rides alone", 1, 1 << 30, "token"},
          {"batch-delay", "DURATION", &O::batch_delay,
           "how long an idle server waits for company before it starts a pass"}};
}

std::vector<Flag> QueueFlags() {
  return {
      {"queue-tokens", "N", &O::queue_tokens, "tokens waiting, over all layers", 1, kManyTokens,
       "token"},
      {"queue-bytes", "BYTES", &O::queue_bytes,
       "tensors of the requests that wait and of their answers", 1024, kManyBytes, "byte"},
      {"layer-queue-tokens", "N", &O::layer_queue_tokens,
       "tokens waiting for one layer; 0: no bound of its own", 0, kManyTokens, "token"},
      {"client-queue-tokens", "N", &O::client_queue_tokens,
       "tokens waiting of one client; 0: no bound of its own", 0, kManyTokens, "token"},
      {"client-queue-requests", "N", &O::client_queue_requests,
       "requests waiting of one client; 0: no bound of its own", 0, 1 << 30, "request"},
      {"request-budget-bytes", "BYTES", &O::request_budget_bytes,
       "requests and answers in memory, all together", 1 << 20, kManyBytes, "byte"},
      {"max-stream-requests", "N", &O::max_stream_requests,
       "requests under way on one ForwardStream; more are not read yet", 1, 1 << 16, "request"}};
}

std::vector<Flag> RequestFlags() {
  return {
      {"max-message-bytes", "BYTES", &O::max_message_bytes, "one request", 1024, kMessageCeiling,
       "byte"},
      {"max-output-bytes", "BYTES", &O::max_output_bytes, "returned tensors of one request", 1024,
       kMessageCeiling, "byte"},
      {"max-tokens", "N", &O::max_tokens, "query tokens of one request, and keys", 1, kManyTokens,
       "token"},
      {"max-sequences", "N", &O::max_sequences, "sequences of one request", 1, 1 << 30, "sequence"},
      {"max-ablations", "N", &O::max_ablations, "ablations of one request", 1, 1 << 24,
       "ablation"}};
}

}  // namespace

const std::vector<FlagGroup>& FlagGroups() {
  static const auto* const groups = new std::vector<FlagGroup>{
      {"Listen", ListenFlags()},
      {"Security", SecurityFlags()},
      {"Layers", LayerFlags()},
      {"Compute", ComputeFlags()},
      {"Limits of what waits", QueueFlags()},
      {"Limits of one request", RequestFlags()},
      {"Stopping",
       {{"lame-duck", "DURATION", &O::lame_duck,
         "after SIGTERM the server says NOT_SERVING and still serves for that long"},
        {"grace", "DURATION", &O::grace, "what accepted calls get to end after that"}}},
      {"Observability",
       {{"metrics", "HOST:PORT", &O::metrics,
         "HTTP: /metrics, /healthz, /readyz; empty: none, port 0: the system chooses"},
        {"log-level", "error|warning|info|debug", &O::log_level,
         "what is logged; debug: a line for each call"},
        {"slow-request", "DURATION", &O::slow_request,
         "log each call that takes at least that long; 0: none"}}},
      {"Other",
       {{"config", "FILE", &O::config,
         "a textproto of these flags, with _ for -; the command line wins over it, --load adds up"},
        {"help", "", &O::help, "print this and exit"},
        {"version", "", &O::version, "print the version and exit"}}},
  };
  return *groups;
}

}  // namespace headwise
