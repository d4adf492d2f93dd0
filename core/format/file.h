// SPDX-License-Identifier: Apache-2.0
// Reading regular files by position. Thread-safe: functions keep no state.
#ifndef HEADWISE_CORE_FORMAT_FILE_H_
#define HEADWISE_CORE_FORMAT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise {

// Owns a file descriptor and closes it. Movable; as thread-safe as an int.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// `text` with control characters and bytes that are no UTF-8 as \xNN, cut after about 200 bytes:
// whatever a file holds, a message stays one short line of valid text.
std::string Printable(absl::string_view text);

// "path: text of errno". NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (descriptors, room on the
// disk), else DATA_LOSS.
absl::Status FileError(int error, absl::string_view path);

// Opens a regular file for reading. NOT_FOUND; PERMISSION_DENIED; INVALID_ARGUMENT for anything
// else than a regular file, without waiting on it.
absl::StatusOr<UniqueFd> OpenForRead(const std::string& path);

// Size in bytes of an open file, which must be a regular one. `path` is for messages.
absl::StatusOr<uint64_t> RegularFileBytes(const UniqueFd& fd, absl::string_view path);

// Reads exactly `bytes` bytes from position `offset`. DATA_LOSS if the file ends before.
absl::Status ReadAt(const UniqueFd& fd, absl::string_view path, uint64_t offset, void* out,
                    size_t bytes);

// The whole text of an open regular file. DATA_LOSS if it is longer than `max_bytes`.
absl::StatusOr<std::string> ReadAll(const UniqueFd& fd, absl::string_view path, uint64_t max_bytes);

}  // namespace headwise

#endif  // HEADWISE_CORE_FORMAT_FILE_H_
