// SPDX-License-Identifier: Apache-2.0
#include "core/layer/store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rules.h"

namespace headwise {
namespace {

absl::Status NotFound(absl::string_view name) {
  return absl::NotFoundError(absl::StrCat("layer: must be a loaded layer; was \"", name, "\""));
}

}  // namespace

absl::Status LayerStore::CheckName(absl::string_view name) {
  if (IsPlainName(name)) return absl::OkStatus();
  const absl::string_view shown = name.substr(0, kMaxPlainNameBytes);
  return absl::InvalidArgumentError(absl::StrCat(
      "name: must match [A-Za-z0-9._-]{1,128} without a leading dot; was \"", shown, "\""));
}

absl::StatusOr<int64_t> LayerStore::Reserve(absl::string_view name, bool replace) {
  MutexLock lock(&mu_);
  const std::string key(name);
  if (!replace && (layers_.count(key) > 0 || loading_.count(key) > 0)) {
    return absl::AlreadyExistsError(
        absl::StrCat("name: taken, and replace is not set; was \"", name, "\""));
  }
  ++loading_[key];
  return ++last_version_[key];
}

void LayerStore::Publish(Handle layer) {
  const std::string name = layer->info().name;
  Abandon(name);
  MutexLock lock(&mu_);
  Handle& slot = layers_[name];
  // Two replacements at once may end in the other order: the newer version stays.
  if (slot == nullptr || slot->info().version < layer->info().version) slot.swap(layer);
}

void LayerStore::Abandon(absl::string_view name) {
  MutexLock lock(&mu_);
  const auto found = loading_.find(name);
  if (--found->second == 0) loading_.erase(found);
}

absl::StatusOr<LayerStore::Handle> LayerStore::Find(absl::string_view name) const {
  MutexLock lock(&mu_);
  const auto found = layers_.find(name);
  if (found == layers_.end()) return NotFound(name);
  return found->second;
}

absl::StatusOr<LayerStore::Handle> LayerStore::Remove(absl::string_view name) {
  MutexLock lock(&mu_);
  const auto found = layers_.find(name);
  if (found == layers_.end()) return NotFound(name);
  Handle layer = std::move(found->second);
  layers_.erase(found);
  return layer;
}

std::vector<LayerStore::Handle> LayerStore::List() const {
  MutexLock lock(&mu_);
  std::vector<Handle> layers;
  for (const auto& [name, layer] : layers_) layers.push_back(layer);
  return layers;
}

}  // namespace headwise
