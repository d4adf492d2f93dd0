// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "server/layer_file.h"
#include "server/service.h"

namespace headwise {
namespace {

constexpr size_t kMaxChunkBytes = size_t{1} << 20;

// Where SaveLayer writes `file`. FAILED_PRECONDITION without --save-dir.
absl::StatusOr<std::string> SavePath(const ServerOptions& options, const std::string& file) {
  if (options.save_dir.empty()) {
    return absl::FailedPreconditionError("save: needs a server with --save-dir; was without");
  }
  if (absl::Status status = CheckSaveName(file); !status.ok()) return status;
  std::string path = absl::StrCat(options.save_dir, "/", file);
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("file: must be a new or a regular file; was ", file));
  }
  return path;
}

// On the loader's thread.
absl::StatusOr<int64_t> SaveNow(const LayerLoader& loader, const StoredLayer& layer,
                                const std::string& path) {
  const absl::StatusOr<LayerFile> file = DescribeLayerFile(layer);
  if (!file.ok()) return file.status();
  std::vector<OwnedTensor> tensors;
  for (const StoredPart* part : file->parts) {
    absl::StatusOr<OwnedTensor> tensor = loader.ReadStored(layer, *part);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  std::vector<std::pair<std::string, TensorView>> views;
  for (size_t i = 0; i < tensors.size(); ++i) {
    views.emplace_back(file->parts[i]->name, tensors[i].view());
  }
  absl::Status status = WriteSafetensors(path, views, file->metadata);
  if (!status.ok()) return status;
  return file->total_bytes;
}

// One DownloadLayer: the head, then part after part, each read on the loader's thread. Deletes
// itself when gRPC is done with it.
class DownloadCall final : public grpc::ServerWriteReactor<v1::DownloadLayerResponse>, public Call {
 public:
  DownloadCall(const Services& services, grpc::CallbackServerContext* context,
               const v1::DownloadLayerRequest* request)
      : Call(services, context, "DownloadLayer", request->name()), request_(*request) {}

  void Start(const Startup& startup) {
    MutexLock lock(&mu_);
    absl::Status status = Admit();
    status.Update(ChooseRequestId(""));
    status.Update(startup.Check(request_.name()));
    if (status.ok()) status = Open();
    if (!status.ok()) return EndStream(status);
    WriteChunk();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    if (!ok || cancelled()) return EndStream(absl::CancelledError("call: was cancelled"));
    Continue();
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override {
    {
      MutexLock lock(&mu_);
    }  // whoever finished the stream has left its locked section
    delete this;
  }

 private:
  absl::Status Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::StatusOr<std::shared_ptr<const StoredLayer>> layer =
        services_.loader->FindStored(request_.name());
    if (!layer.ok()) return layer.status();
    layer_ = *std::move(layer);
    absl::StatusOr<LayerFile> file = DescribeLayerFile(*layer_);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    bytes_.assign(file_.head.begin(), file_.head.end());
    return absl::OkStatus();
  }

  // Writes on from what is here, or fetches the next part that has bytes.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (offset_ < bytes_.size()) return WriteChunk();
    if (next_part_ == file_.parts.size()) return EndStream(absl::OkStatus());
    const StoredPart* const part = file_.parts[next_part_++];
    const absl::Status posted = services_.loader->Run([this, part] {
      absl::StatusOr<OwnedTensor> tensor = services_.loader->ReadStored(*layer_, *part);
      MutexLock lock(&mu_);
      if (!tensor.ok()) return EndStream(tensor.status());
      bytes_ = std::move(tensor->data);
      offset_ = 0;
      Continue();
    });
    if (!posted.ok()) EndStream(posted);
  }

  void WriteChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const size_t bytes = std::min(kMaxChunkBytes, bytes_.size() - offset_);
    const absl::string_view data(reinterpret_cast<const char*>(bytes_.data()) + offset_, bytes);
    message_.set_total_bytes(file_.total_bytes);
    message_.set_offset(sent_);
    message_.set_data(data.data(), data.size());
    message_.set_crc32c(static_cast<uint32_t>(absl::ComputeCrc32c(data)));
    offset_ += bytes;
    sent_ += static_cast<int64_t>(bytes);
    StartWrite(&message_);
  }

  void EndStream(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Finish(End(status));
  }

  const v1::DownloadLayerRequest& request_;  // gRPC keeps it until OnDone
  Mutex mu_;
  v1::DownloadLayerResponse message_;  // belongs to gRPC while a write is under way
  std::shared_ptr<const StoredLayer> layer_;
  LayerFile file_;
  std::vector<uint8_t> bytes_ ABSL_GUARDED_BY(mu_);  // of the head or of one part
  size_t offset_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_part_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t sent_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

grpc::ServerUnaryReactor* HeadwiseService::SaveLayer(grpc::CallbackServerContext* context,
                                                     const v1::SaveLayerRequest* request,
                                                     v1::SaveLayerResponse* response) {
  auto* call = new UnaryCall(services_, context, "SaveLayer", request->name());
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(""));
  status.Update(startup_.Check(request->name()));
  absl::StatusOr<std::string> path = SavePath(*services_.options, request->file());
  status.Update(path.status());
  absl::StatusOr<std::shared_ptr<const StoredLayer>> layer =
      services_.loader->FindStored(request->name());
  status.Update(layer.status());
  if (status.ok()) {
    status = services_.loader->Run([this, call, response, path = *path, layer = *layer] {
      const absl::StatusOr<int64_t> bytes = SaveNow(*services_.loader, *layer, path);
      if (bytes.ok()) response->set_bytes(*bytes);
      call->Reply(bytes.status());
    });
    if (status.ok()) return call;
  }
  call->Reply(status);
  return call;
}

grpc::ServerWriteReactor<v1::DownloadLayerResponse>* HeadwiseService::DownloadLayer(
    grpc::CallbackServerContext* context, const v1::DownloadLayerRequest* request) {
  auto* call = new DownloadCall(services_, context, request);
  call->Start(startup_);
  return call;
}

}  // namespace headwise
