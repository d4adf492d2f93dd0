// SPDX-License-Identifier: Apache-2.0
// What an upload is made of: the caller's files, and how tensors are cut into chunks.
#ifndef HEADWISE_CLIENT_UPLOAD_H_
#define HEADWISE_CLIENT_UPLOAD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/tensor.h"
#include "core/format/safetensors.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {

inline constexpr size_t kUploadChunkBytes = 4u << 20;

// How the new layer is to be called and stored.
struct UploadTarget {
  std::string name;
  v1::DType dtype = v1::F32;
  bool replace = false;
};

// Where the bytes of a named tensor come from.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // NOT_FOUND, UNIMPLEMENTED (dtype), DATA_LOSS, as SafetensorsFile::Read.
  virtual absl::StatusOr<OwnedTensor> Read(const std::string& name) const = 0;
  // Name, dtype and shape of every tensor; sorted by name.
  virtual const std::vector<v1::StoredTensor>& tensors() const = 0;
};

// A checkpoint folder on the caller's disk: config.json, and model.safetensors.index.json or else
// model.safetensors. With an index, its weight_map alone names each tensor's file. Immutable after
// Open; thread-safe.
class CheckpointFolder : public TensorSource {
 public:
  // NOT_FOUND: no folder, config.json or weights. DATA_LOSS: malformed files, index entries that
  // leave the folder or aren't in their file.
  static absl::StatusOr<std::unique_ptr<CheckpointFolder>> Open(const std::string& dir);

  const std::string& config_json() const { return config_json_; }
  absl::StatusOr<OwnedTensor> Read(const std::string& name) const override;
  const std::vector<v1::StoredTensor>& tensors() const override { return tensors_; }

 private:
  CheckpointFolder() = default;
  absl::Status OpenSingle(const std::string& path);
  absl::Status OpenIndex(const std::string& dir, const std::string& index_path);
  absl::Status Add(const std::string& name, const std::shared_ptr<const SafetensorsFile>& file);

  std::string config_json_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> file_of_;  // by tensor name
  std::vector<v1::StoredTensor> tensors_;
};

// One weights file. Immutable after Open; thread-safe.
class WeightsFile : public TensorSource {
 public:
  static absl::StatusOr<std::unique_ptr<WeightsFile>> Open(const std::string& path);
  absl::StatusOr<OwnedTensor> Read(const std::string& name) const override;
  const std::vector<v1::StoredTensor>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return file_->header().metadata; }

 private:
  WeightsFile() = default;
  std::unique_ptr<SafetensorsFile> file_;
  std::vector<v1::StoredTensor> tensors_;
};

// Fills the header's `tensors` and `total_bytes` with `names`, each once, in order. NOT_FOUND with
// the name where `source` has no such tensor.
absl::Status DescribeTensors(const TensorSource& source, const std::vector<std::string>& names,
                             v1::UploadHeader* header);

// The names that a spec's `tensors` holds, in the order of the fields.
std::vector<std::string> SpecTensorNames(const v1::TensorNames& names);

// Fills the header's `spec` and `origin` from the metadata of a saved layer's file. DATA_LOSS for
// another file, UNIMPLEMENTED for a later format, by number; `path` is for messages.
absl::Status DescribeSavedLayer(const WeightsFile& file, const std::string& path,
                                v1::UploadHeader* header);

// JSON of LayerSpec; unknown keys are INVALID_ARGUMENT.
absl::StatusOr<v1::LayerSpec> ParseSpec(absl::string_view json);

// Hands `data` of the header's tensor number `tensor` to `send` in chunks of at most
// kUploadChunkBytes, in order; an empty tensor needs none. Stops and returns false when `send`
// does.
bool SendChunks(uint32_t tensor, absl::string_view data,
                const std::function<bool(const v1::UploadLayerRequest&)>& send);

// A whole file as text. NOT_FOUND, PERMISSION_DENIED, or DATA_LOSS (longer than `max_bytes`, too).
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_UPLOAD_H_
