// SPDX-License-Identifier: Apache-2.0
// A saved layer on its way into a file here.
#ifndef HEADWISE_CLIENT_DOWNLOAD_H_
#define HEADWISE_CLIENT_DOWNLOAD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/format/file.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {

// Writes beside `path`; only a complete file appears there. Not thread-safe.
class DownloadFile {
 public:
  // INVALID_ARGUMENT (a folder), NOT_FOUND, PERMISSION_DENIED.
  static absl::StatusOr<std::unique_ptr<DownloadFile>> Create(const std::string& path);
  // Leaves nothing behind unless Finish succeeded.
  ~DownloadFile();

  // The next part. DATA_LOSS if it does not go on where the last one ended, differs from its
  // checksum, or if the whole has another size than was said; RESOURCE_EXHAUSTED and others for the
  // disk.
  absl::Status Add(const v1::DownloadLayerResponse& part);

  // DATA_LOSS if bytes are missing.
  absl::Status Finish();

  int64_t bytes() const { return bytes_; }

 private:
  DownloadFile(std::string path, std::string temporary, UniqueFd fd);

  const std::string path_;
  const std::string temporary_;
  const UniqueFd fd_;
  int64_t bytes_ = 0;
  int64_t total_bytes_ = -1;  // as the first part says
  bool finished_ = false;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_DOWNLOAD_H_
