// SPDX-License-Identifier: Apache-2.0
// What the loaded layers were made from, so that they can be saved bit for bit.
#ifndef HEADWISE_SERVER_LAYER_ARCHIVE_H_
#define HEADWISE_SERVER_LAYER_ARCHIVE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/base/tensor.h"
#include "core/checkpoint/checkpoint.h"
#include "core/layer/layer_info.h"

namespace headwise {

// One of a layer's tensors. A checkpoint's in the repository are read again when they are needed
// and must still have the same bytes; uploaded ones are kept.
struct StoredPart {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint32_t crc32c = 0;
  std::optional<OwnedTensor> kept;
};

struct StoredLayer {
  LayerSpec spec;      // resolved
  LayerSource source;  // dir: in the repository, unless the parts are kept
  std::vector<TensorUse> uses;
  std::vector<StoredPart> parts;  // of distinct names
};

// The CRC32C of a whole whose pieces come in any order, each once: `crc` (0 at first) with a piece
// that has `bytes_behind` bytes between its end and the whole's.
uint32_t AddToCrc32c(uint32_t crc, absl::Span<const char> piece, size_t bytes_behind);

StoredPart DescribePart(std::string name, const OwnedTensor& tensor);

// The stored layers by name and version. Thread-safe.
class LayerArchive {
 public:
  // Replaces an older version.
  void Put(absl::string_view name, int64_t version, StoredLayer layer);
  void Remove(absl::string_view name);
  // Null if this version is not there.
  std::shared_ptr<const StoredLayer> Find(absl::string_view name, int64_t version) const;

 private:
  struct Entry {
    int64_t version = 0;
    std::shared_ptr<const StoredLayer> layer;
  };
  mutable Mutex mu_;
  std::map<std::string, Entry, std::less<>> layers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_LAYER_ARCHIVE_H_
