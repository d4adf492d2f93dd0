// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_UPLOAD_H_
#define HEADWISE_SERVER_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "headwise/v1/headwise.pb.h"
#include "server/layer_loader.h"

namespace headwise {

inline constexpr size_t kMaxUploadChunkBytes = size_t{4} << 20;
inline constexpr size_t kMaxConfigJsonBytes = size_t{1} << 20;

// Puts the messages of one UploadLayer together. Nothing of it is seen outside before Finish.
// Not thread-safe.
class Upload {
 public:
  // What can be refused before any byte has come is refused here: description, names, dtypes, sizes
  // (RESOURCE_EXHAUSTED beyond `max_bytes`). Allocates nothing for the bytes yet.
  absl::Status Begin(const v1::UploadHeader& header, int64_t max_bytes);

  // The next bytes. INVALID_ARGUMENT for a gap, an overlap, a wrong tensor or size, a wrong CRC32C.
  absl::Status Add(const v1::UploadChunk& chunk);

  // After the last chunk. INVALID_ARGUMENT if bytes are missing. Hands everything over.
  absl::StatusOr<UploadLoad> Finish();

  bool begun() const { return begun_; }
  int64_t total_bytes() const { return total_bytes_; }
  int64_t received_bytes() const { return received_bytes_; }

 private:
  absl::Status TakeTensors(const v1::UploadHeader& header, int64_t max_bytes);
  absl::Status TakeDescription(const v1::UploadHeader& header);
  absl::Status CheckUses() const;
  void SkipFullTensors();

  bool begun_ = false;
  UploadLoad load_;
  std::vector<size_t> sizes_;  // of each tensor in bytes
  int64_t total_bytes_ = 0;
  int64_t received_bytes_ = 0;
  size_t current_ = 0;  // tensor that the next chunk belongs to
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_UPLOAD_H_
