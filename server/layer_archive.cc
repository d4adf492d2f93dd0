// SPDX-License-Identifier: Apache-2.0
#include "server/layer_archive.h"

#include "absl/crc/crc32c.h"

namespace headwise {

uint32_t AddToCrc32c(uint32_t crc, absl::Span<const char> piece, size_t bytes_behind) {
  const absl::crc32c_t own = absl::ComputeCrc32c(absl::string_view(piece.data(), piece.size()));
  // A checksum is linear: the whole's is the sum of the pieces', each moved by what lies behind it.
  const absl::crc32c_t moved = absl::ConcatCrc32c(own, absl::crc32c_t{0}, bytes_behind);
  return crc ^ static_cast<uint32_t>(moved);
}

StoredPart DescribePart(std::string name, const OwnedTensor& tensor) {
  StoredPart part;
  part.name = std::move(name);
  part.dtype = tensor.dtype;
  part.shape = tensor.shape;
  part.crc32c = AddToCrc32c(
      0, absl::MakeSpan(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()), 0);
  return part;
}

void LayerArchive::Put(absl::string_view name, int64_t version, StoredLayer layer) {
  MutexLock lock(&mu_);
  Entry& entry = layers_[std::string(name)];
  if (entry.version > version) return;
  entry = {version, std::make_shared<const StoredLayer>(std::move(layer))};
}

void LayerArchive::Remove(absl::string_view name) {
  MutexLock lock(&mu_);
  const auto found = layers_.find(name);
  if (found != layers_.end()) layers_.erase(found);
}

std::shared_ptr<const StoredLayer> LayerArchive::Find(absl::string_view name,
                                                      int64_t version) const {
  MutexLock lock(&mu_);
  const auto found = layers_.find(name);
  if (found == layers_.end() || found->second.version != version) return nullptr;
  return found->second.layer;
}

}  // namespace headwise
