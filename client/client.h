// SPDX-License-Identifier: Apache-2.0
// The C++ client: one connection to a Headwise server.
#ifndef HEADWISE_CLIENT_CLIENT_H_
#define HEADWISE_CLIENT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/channel_security.h"
#include "client/forward_stream.h"
#include "client/retry.h"
#include "client/upload.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {

struct ClientOptions {
  absl::Duration timeout = absl::Seconds(30);  // of each call, from its start to its end
  // A TCP connection of its own. Without it clients of one process and target may share one.
  bool own_connection = false;
  // Of calls that may be sent twice: Forward, Ablate, AnalyzeHeads, Audit and what only reads.
  RetryOptions retry;
  // Whose share of the server the calls use; empty: the server goes by this machine's address.
  std::string client_id;
  ChannelSecurity security;
};

// Told how far a long call is: `done` of `total` bytes (uploads) or steps (ablations).
using ProgressCallback = std::function<void(const std::string& stage, int64_t done, int64_t total)>;

// A thin wrapper over the generated stub: plain calls, errors as absl::Status with the server's
// code and message, no limit of its own on message sizes. Connects at the first call. Thread-safe.
class Client {
 public:
  // `target` is HOST:PORT, a list of addresses ("10.0.0.1:8500,10.0.0.2:8500"), or what gRPC
  // resolves besides (unix:PATH, dns:///…). Calls take turns over all its addresses that are
  // healthy. INVALID_ARGUMENT for a target that can't be one, and as CheckSecurity. Never fails for
  // an absent server: the first call does, with UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target,
                                                         const ClientOptions& options = {});
  virtual ~Client() = default;

  virtual absl::StatusOr<v1::ForwardResponse> Forward(const v1::ForwardRequest& request) = 0;

  // Many forwards on one call; its deadline is that of the whole stream.
  virtual std::unique_ptr<ForwardStream> OpenForwardStream() = 0;

  // Collects the stream: the result, its tensors filled with the bytes that followed it. INTERNAL
  // if the stream ends early or its chunks don't fit.
  virtual absl::StatusOr<v1::AblateResult> Ablate(const v1::AblateRequest& request,
                                                  const ProgressCallback& progress = {}) = 0;

  // The stream's result. INTERNAL if it ends without.
  virtual absl::StatusOr<v1::AnalyzeHeadsResult> AnalyzeHeads(
      const v1::AnalyzeHeadsRequest& request, const ProgressCallback& progress = {}) = 0;

  // The same of an audit.
  virtual absl::StatusOr<v1::AuditResult> Audit(const v1::AuditRequest& request,
                                                const ProgressCallback& progress = {}) = 0;

  virtual absl::StatusOr<v1::LoadLayerResponse> LoadLayer(const v1::LoadLayerRequest& request) = 0;
  virtual absl::StatusOr<v1::PlanUploadResponse> PlanUpload(
      const v1::PlanUploadRequest& request) = 0;

  // Sends the header, then every tensor of it in chunks of at most 4 MiB, each with its CRC32C. The
  // bytes come from `source`, one tensor at a time.
  virtual absl::StatusOr<v1::LoadLayerResponse> Upload(const v1::UploadHeader& header,
                                                       const TensorSource& source,
                                                       const ProgressCallback& progress = {}) = 0;

  virtual absl::StatusOr<v1::UnloadLayerResponse> UnloadLayer(const std::string& name) = 0;
  virtual absl::StatusOr<v1::ListLayersResponse> ListLayers() = 0;
  virtual absl::StatusOr<v1::LayerDetails> GetLayer(const v1::GetLayerRequest& request) = 0;
  virtual absl::StatusOr<v1::LoadLayerResponse> DeriveLayer(
      const v1::DeriveLayerRequest& request) = 0;
  virtual absl::StatusOr<v1::SaveLayerResponse> SaveLayer(const v1::SaveLayerRequest& request) = 0;
  // Hands every part of the file to `take`, in order; stops with its error.
  virtual absl::Status DownloadLayer(
      const std::string& name,
      const std::function<absl::Status(const v1::DownloadLayerResponse&)>& take) = 0;
  virtual absl::StatusOr<v1::ListRepositoryResponse> ListRepository() = 0;
  virtual absl::StatusOr<v1::ServerInfoResponse> ServerInfo() = 0;

  // The serving status by name ("SERVING", "NOT_SERVING", …) of the server (empty `service`) or of
  // "layer/NAME".
  virtual absl::StatusOr<std::string> Health(const std::string& service) = 0;

  // Loads a layer of a checkpoint folder that lies here: reads its headers, asks the server which
  // tensors the layer is made of, streams only those. Errors of Checkpoint folders: ReadFolder.
  absl::StatusOr<v1::LoadLayerResponse> UploadCheckpointLayer(
      const std::string& dir, const UploadTarget& target, const std::string& layer,
      const ProgressCallback& progress = {});

  // Loads one's own layer: `spec_json` is JSON of LayerSpec, its `tensors` name those of
  // `weights_file` (.safetensors).
  absl::StatusOr<v1::LoadLayerResponse> UploadSpecLayer(const std::string& spec_json,
                                                        const std::string& weights_file,
                                                        const UploadTarget& target,
                                                        const ProgressCallback& progress = {});

  // Loads a layer that SaveLayer or DownloadLayer wrote to `file`. DATA_LOSS for a file that is no
  // such layer.
  absl::StatusOr<v1::LoadLayerResponse> UploadSavedLayer(const std::string& file,
                                                         const UploadTarget& target,
                                                         const ProgressCallback& progress = {});
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_CLIENT_H_
