// SPDX-License-Identifier: Apache-2.0
// Layers that live on the server for one command.
#ifndef HEADWISE_CLIENT_LEARN_TEMPORARY_LAYER_H_
#define HEADWISE_CLIENT_LEARN_TEMPORARY_LAYER_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace headwise::client {

// Tensors by name that lie in memory. Immutable; thread-safe.
class TensorMap : public TensorSource {
 public:
  explicit TensorMap(std::map<std::string, OwnedTensor> tensors);
  absl::StatusOr<OwnedTensor> Read(const std::string& name) const override;  // NOT_FOUND
  const std::vector<v1::StoredTensor>& tensors() const override { return described_; }

 private:
  const std::map<std::string, OwnedTensor> tensors_;
  std::vector<v1::StoredTensor> described_;
};

// A layer with a name of its own, unloaded by the destructor. Not thread-safe.
class TemporaryLayer {
 public:
  // `spec.tensors` names tensors of `source`. Errors of Upload.
  static absl::StatusOr<std::unique_ptr<TemporaryLayer>> Upload(Client* client,
                                                                const v1::LayerSpec& spec,
                                                                const TensorSource& source);
  // `request` with `as` filled in. Errors of DeriveLayer.
  static absl::StatusOr<std::unique_ptr<TemporaryLayer>> Derive(Client* client,
                                                                v1::DeriveLayerRequest request);
  ~TemporaryLayer();
  TemporaryLayer(const TemporaryLayer&) = delete;
  TemporaryLayer& operator=(const TemporaryLayer&) = delete;

  const std::string& name() const { return name_; }

 private:
  TemporaryLayer(Client* client, std::string name) : client_(client), name_(std::move(name)) {}
  Client* const client_;
  const std::string name_;
};

// A folder of its own, removed with what is in it.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Create();  // INTERNAL: no place for it
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LEARN_TEMPORARY_LAYER_H_
