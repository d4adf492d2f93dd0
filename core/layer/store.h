// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_LAYER_STORE_H_
#define HEADWISE_CORE_LAYER_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/layer/attention_layer.h"

namespace headwise {

// Layers by name. A handle taken before a replacement or an unload keeps its layer alive and
// unchanged. Thread-safe.
class LayerStore {
 public:
  using Handle = std::shared_ptr<const AttentionLayer>;

  // INVALID_ARGUMENT unless the name matches [A-Za-z0-9._-]{1,128} without a leading dot.
  static absl::Status CheckName(absl::string_view name);

  // Takes a version for a load that is under way: ALREADY_EXISTS if the name is taken (or being
  // loaded) and `replace` is false.
  absl::StatusOr<int64_t> Reserve(absl::string_view name, bool replace);

  // Ends a load: the layer appears under its name, replacing an older version, or nothing changes.
  void Publish(Handle layer);
  void Abandon(absl::string_view name);

  absl::StatusOr<Handle> Find(absl::string_view name) const;  // NOT_FOUND
  absl::StatusOr<Handle> Remove(absl::string_view name);      // NOT_FOUND
  std::vector<Handle> List() const;                           // by name

 private:
  mutable Mutex mu_;
  std::map<std::string, Handle, std::less<>> layers_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int, std::less<>> loading_ ABSL_GUARDED_BY(mu_);
  // Kept after an unload, so that a version never names two layers.
  std::map<std::string, int64_t, std::less<>> last_version_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_CORE_LAYER_STORE_H_
