// SPDX-License-Identifier: Apache-2.0
#include "client/learn/temporary_layer.h"

#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/status.h"

namespace headwise::client {
namespace {

// Nobody else's: two commands may run at a time.
std::string FreshName() {
  std::random_device random;
  return absl::StrFormat("learn-%08x%08x", random(), random());
}

}  // namespace

TensorMap::TensorMap(std::map<std::string, OwnedTensor> tensors) : tensors_(std::move(tensors)) {
  for (const auto& [name, tensor] : tensors_) {
    v1::StoredTensor& entry = described_.emplace_back();
    entry.set_name(name);
    entry.set_dtype(std::string(DTypeName(tensor.dtype)));
    for (const int64_t axis : tensor.shape) entry.add_shape(static_cast<uint32_t>(axis));
  }
}

absl::StatusOr<OwnedTensor> TensorMap::Read(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("tensor: must be one that is given; was \"", name, "\""));
}

absl::StatusOr<std::unique_ptr<TemporaryLayer>> TemporaryLayer::Upload(Client* client,
                                                                       const v1::LayerSpec& spec,
                                                                       const TensorSource& source) {
  v1::UploadHeader header;
  header.set_name(FreshName());
  *header.mutable_spec() = spec;
  CLIENT_RETURN_IF_ERROR(DescribeTensors(source, SpecTensorNames(spec.tensors()), &header));
  CLIENT_RETURN_IF_ERROR(client->Upload(header, source).status());
  return std::unique_ptr<TemporaryLayer>(new TemporaryLayer(client, header.name()));
}

absl::StatusOr<std::unique_ptr<TemporaryLayer>> TemporaryLayer::Derive(
    Client* client, v1::DeriveLayerRequest request) {
  request.set_as(FreshName());
  CLIENT_RETURN_IF_ERROR(client->DeriveLayer(request).status());
  return std::unique_ptr<TemporaryLayer>(new TemporaryLayer(client, request.as()));
}

// A server that has gone has no layer left either.
TemporaryLayer::~TemporaryLayer() { client_->UnloadLayer(name_).status().IgnoreError(); }

absl::StatusOr<std::unique_ptr<TemporaryFolder>> TemporaryFolder::Create() {
  std::error_code error;
  std::string name = (std::filesystem::temp_directory_path(error) / "headwise-XXXXXX").string();
  if (error || ::mkdtemp(name.data()) == nullptr) {
    return absl::InternalError(
        absl::StrCat("temporary folder: must be possible to make; was not, as ", name));
  }
  return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(std::move(name)));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace headwise::client
