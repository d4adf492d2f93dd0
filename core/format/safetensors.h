// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes of header length, a JSON header, tensor bytes.
#ifndef HEADWISE_CORE_FORMAT_SAFETENSORS_H_
#define HEADWISE_CORE_FORMAT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/tensor.h"
#include "core/format/file.h"

namespace headwise {

// A header longer than this is refused (DATA_LOSS).
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100u << 20;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as spelled; may be one that DTypeFromName doesn't know
  Shape shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by offset, then name
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // bytes from the start of the file
};

// Parses the first bytes of a file of `file_bytes` bytes. `head` must hold 8 bytes and the header
// (or the whole file if that is shorter). DATA_LOSS with the rule broken and the tensor's name:
// duplicate names, overlaps, holes, trailing bytes, sizes that don't match the shape, overflow.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view head,
                                                         uint64_t file_bytes);

// The dtype to read `entry` as. UNIMPLEMENTED, by name, for one that we don't know.
absl::StatusOr<DType> EntryDType(const SafetensorsEntry& entry);

// An open file. Reads with pread, never mmap, so a file cut later is an error and no SIGBUS.
// Immutable after Open; thread-safe.
class SafetensorsFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular file); DATA_LOSS naming file and
  // rule. Memory grows with what the file really holds, not with what it claims.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The same for a file that is open already; `path` is for messages.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> FromFd(UniqueFd fd,
                                                                 absl::string_view path);

  const SafetensorsHeader& header() const { return header_; }
  const SafetensorsEntry* Find(absl::string_view name) const;  // null if absent

  // NOT_FOUND; UNIMPLEMENTED (dtype, by name); DATA_LOSS if the file has become shorter.
  absl::StatusOr<OwnedTensor> Read(absl::string_view name) const;

  // A stretch of the tensor's bytes from `offset` on, of whatever dtype. NOT_FOUND;
  // INVALID_ARGUMENT if it doesn't lie inside the tensor; DATA_LOSS as Read.
  absl::Status ReadPart(absl::string_view name, int64_t offset, absl::Span<char> out) const;

 private:
  absl::StatusOr<const SafetensorsEntry*> Require(absl::string_view name) const;
  SafetensorsFile(std::string path, UniqueFd fd, SafetensorsHeader header);
  const std::string path_;
  const UniqueFd fd_;
  const SafetensorsHeader header_;
};

// The 8 bytes of length and the header, padded to 8 bytes, of a file of these tensors in this
// order; the tensors' bytes follow, one after the other. Names must be distinct; a view's data is
// not read.
std::string EncodeSafetensorsHead(const std::vector<std::pair<std::string, TensorView>>& tensors,
                                  const std::map<std::string, std::string>& metadata);

// Writes tensors in the given order, atomically (a temporary file beside it, then rename). Header
// padded to 8 bytes. A link is followed, a device or pipe is written to as it is. INVALID_ARGUMENT
// (a name twice, a folder), PERMISSION_DENIED, NOT_FOUND (folder), RESOURCE_EXHAUSTED (a full
// disk), DATA_LOSS (disk) naming the file; then the old file stays and nothing is left beside it.
absl::Status WriteSafetensors(const std::string& path,
                              const std::vector<std::pair<std::string, TensorView>>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// Removes the temporary files that WriteSafetensors left in a folder because its process was
// killed. Those of processes that still run stay.
void RemoveTemporaries(const std::string& folder);

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_SAFETENSORS_H_
