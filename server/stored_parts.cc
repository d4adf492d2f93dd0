// SPDX-License-Identifier: Apache-2.0
#include "server/stored_parts.h"

#include <utility>
#include <vector>

namespace headwise {

absl::StatusOr<LayerParts> ReadParts(const LayerLoader& loader, const std::string& name) {
  const auto stored = loader.FindStored(name);
  if (!stored.ok()) return stored.status();
  std::vector<OwnedTensor> tensors;
  for (const StoredPart& part : (*stored)->parts) {
    absl::StatusOr<OwnedTensor> tensor = loader.ReadStored(**stored, part);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  std::vector<RoleTensor> roles;
  for (const TensorUse& use : (*stored)->uses) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if ((*stored)->parts[i].name != use.name) continue;
      roles.push_back({use.role, use.name, tensors[i].view(), use.head});
      break;
    }
  }
  auto matrices = UnpackWeights((*stored)->spec, roles);
  if (!matrices.ok()) return matrices.status();
  return LayerParts{(*stored)->spec, *std::move(matrices)};
}

}  // namespace headwise
