// SPDX-License-Identifier: Apache-2.0
// A saved layer: one safetensors file with its spec in the header's metadata.
#ifndef HEADWISE_SERVER_LAYER_FILE_H_
#define HEADWISE_SERVER_LAYER_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/layer_archive.h"

namespace headwise {

// The file's contents but for the tensors' bytes. The same layer gives the same file, however it
// was brought here.
struct LayerFile {
  std::map<std::string, std::string> metadata;
  std::vector<const StoredPart*> parts;  // of the layer, in the file's order
  std::string head;                      // what the tensors' bytes follow
  int64_t total_bytes = 0;
};

// `layer` must outlive the result. INTERNAL if the spec can't be written as JSON.
absl::StatusOr<LayerFile> DescribeLayerFile(const StoredLayer& layer);

// Whether `file` is a name that SaveLayer takes. INVALID_ARGUMENT.
absl::Status CheckSaveName(const std::string& file);

}  // namespace headwise

#endif  // HEADWISE_SERVER_LAYER_FILE_H_
