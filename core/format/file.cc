// SPDX-License-Identifier: Apache-2.0
#include "core/format/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

// Bytes of the UTF-8 sequence that `text` begins with; 0 if it begins with none.
size_t Utf8SequenceBytes(absl::string_view text) {
  const auto byte = [&text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  // No second spelling of a shorter sequence, no surrogates, nothing beyond U+10FFFF.
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

std::string Printable(absl::string_view text) {
  constexpr size_t kMaxBytes = 200;
  std::string out;
  while (!text.empty()) {
    if (out.size() >= kMaxBytes) return out + "...";
    const size_t length = Utf8SequenceBytes(text);
    if (length == 0 || static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f) {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(text[0]), absl::kZeroPad2));
      text.remove_prefix(1);
    } else {
      out.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return out;
}

absl::Status FileError(int error, absl::string_view path) {
  const std::string text = absl::StrCat(Printable(path), ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::DataLossError(text);
  }
}

absl::StatusOr<UniqueFd> OpenForRead(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("file name: must not hold a NUL; was ", Printable(path)));
  }
  // O_NONBLOCK: a named pipe without a writer would hold the open.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.ok()) return FileError(errno, path);
  if (absl::StatusOr<uint64_t> bytes = RegularFileBytes(fd, path); !bytes.ok()) {
    return bytes.status();
  }
  return fd;
}

absl::StatusOr<uint64_t> RegularFileBytes(const UniqueFd& fd, absl::string_view path) {
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return FileError(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(Printable(path), ": must be a regular file"));
  }
  return static_cast<uint64_t>(info.st_size);
}

absl::Status ReadAt(const UniqueFd& fd, absl::string_view path, uint64_t offset, void* out,
                    size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(fd.get(), static_cast<char*>(out) + done, bytes - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, path);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(Printable(path), ": must have at least ",
                                              offset + bytes, " bytes; was ", offset + done));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(const UniqueFd& fd, absl::string_view path,
                                    uint64_t max_bytes) {
  const absl::StatusOr<uint64_t> bytes = RegularFileBytes(fd, path);
  if (!bytes.ok()) return bytes.status();
  if (*bytes > max_bytes) {
    return absl::DataLossError(
        absl::StrCat(Printable(path), ": must have at most ", max_bytes, " bytes; was ", *bytes));
  }
  std::string text(*bytes, '\0');
  if (absl::Status status = ReadAt(fd, path, 0, text.data(), text.size()); !status.ok()) {
    return status;
  }
  return text;
}

}  // namespace headwise
