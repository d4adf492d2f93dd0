// SPDX-License-Identifier: Apache-2.0
#include "client/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"

namespace headwise::client {

DownloadFile::DownloadFile(std::string path, std::string temporary, UniqueFd fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

DownloadFile::~DownloadFile() {
  if (!finished_) ::unlink(temporary_.c_str());
}

absl::StatusOr<std::unique_ptr<DownloadFile>> DownloadFile::Create(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must be a new or a regular file"));
  }
  std::string temporary = absl::StrCat(path, ".", ::getpid(), ".part");
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.ok()) return FileError(errno, path);
  return std::unique_ptr<DownloadFile>(new DownloadFile(path, std::move(temporary), std::move(fd)));
}

absl::Status DownloadFile::Add(const v1::DownloadLayerResponse& part) {
  const std::string& data = part.data();
  if (total_bytes_ < 0) total_bytes_ = part.total_bytes();
  if (part.offset() != bytes_ || part.total_bytes() != total_bytes_ ||
      static_cast<int64_t>(data.size()) > total_bytes_ - bytes_) {
    return absl::DataLossError(absl::StrCat("download: must go on at byte ", bytes_, " of ",
                                            total_bytes_, "; was ", data.size(), " bytes at ",
                                            part.offset(), " of ", part.total_bytes()));
  }
  if (part.crc32c() != static_cast<uint32_t>(absl::ComputeCrc32c(data))) {
    return absl::DataLossError(
        absl::StrCat("download: must have its checksum; was another at byte ", bytes_));
  }
  for (size_t done = 0; done < data.size();) {
    const ssize_t wrote = ::write(fd_.get(), data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return FileError(errno, path_);
    done += static_cast<size_t>(wrote);
  }
  bytes_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

absl::Status DownloadFile::Finish() {
  if (bytes_ != total_bytes_) {
    return absl::DataLossError(
        absl::StrCat("download: must be complete, ", total_bytes_, " bytes; was ", bytes_));
  }
  if (::fsync(fd_.get()) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return FileError(errno, path_);
  }
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace headwise::client
