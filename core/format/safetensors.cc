// SPDX-License-Identifier: Apache-2.0
#include "core/format/safetensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

absl::Status WithPath(const absl::Status& status, absl::string_view path) {
  return absl::Status(status.code(), absl::StrCat(Printable(path), ": ", status.message()));
}

// The 8 bytes and the header, or the whole file where that is shorter.
absl::StatusOr<std::string> ReadHead(const UniqueFd& fd, absl::string_view path,
                                     uint64_t file_bytes) {
  std::string head(std::min<uint64_t>(8, file_bytes), '\0');
  if (absl::Status status = ReadAt(fd, path, 0, head.data(), head.size()); !status.ok()) {
    return status;
  }
  if (head.size() < 8) return head;
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(head[i])) << (8 * i);
  }
  // A length that is refused anyway is not worth a byte of memory.
  if (length > kMaxSafetensorsHeaderBytes || length > file_bytes - 8) return head;
  head.resize(8 + length);
  if (absl::Status status = ReadAt(fd, path, 8, head.data() + 8, length); !status.ok()) {
    return status;
  }
  return head;
}

}  // namespace

absl::StatusOr<DType> EntryDType(const SafetensorsEntry& entry) {
  if (const std::optional<DType> dtype = DTypeFromName(entry.dtype)) return *dtype;
  return absl::UnimplementedError(absl::StrCat("tensor \"", Printable(entry.name), "\": dtype ",
                                               Printable(entry.dtype), " isn't supported"));
}

SafetensorsFile::SafetensorsFile(std::string path, UniqueFd fd, SafetensorsHeader header)
    : path_(std::move(path)), fd_(std::move(fd)), header_(std::move(header)) {}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<UniqueFd> fd = OpenForRead(path);
  if (!fd.ok()) return fd.status();
  return FromFd(*std::move(fd), path);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::FromFd(UniqueFd fd,
                                                                         absl::string_view path) {
  const absl::StatusOr<uint64_t> bytes = RegularFileBytes(fd, path);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<std::string> head = ReadHead(fd, path, *bytes);
  if (!head.ok()) return head.status();
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(*head, *bytes);
  if (!header.ok()) return WithPath(header.status(), path);
  return std::unique_ptr<SafetensorsFile>(
      new SafetensorsFile(std::string(path), std::move(fd), *std::move(header)));
}

const SafetensorsEntry* SafetensorsFile::Find(absl::string_view name) const {
  for (const SafetensorsEntry& entry : header_.entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

absl::StatusOr<const SafetensorsEntry*> SafetensorsFile::Require(absl::string_view name) const {
  const SafetensorsEntry* const entry = Find(name);
  if (entry != nullptr) return entry;
  return absl::NotFoundError(
      absl::StrCat(Printable(path_), ": holds no tensor \"", Printable(name), "\""));
}

absl::Status SafetensorsFile::ReadPart(absl::string_view name, int64_t offset,
                                       absl::Span<char> out) const {
  const absl::StatusOr<const SafetensorsEntry*> entry = Require(name);
  if (!entry.ok()) return entry.status();
  const uint64_t bytes = (*entry)->end - (*entry)->begin;
  if (offset < 0 || out.size() > bytes || static_cast<uint64_t>(offset) > bytes - out.size()) {
    return absl::InvalidArgumentError(absl::StrCat("part: must lie inside tensor \"",
                                                   Printable(name), "\" of ", bytes, " bytes; was ",
                                                   out.size(), " from ", offset));
  }
  return ReadAt(fd_, path_, header_.data_begin + (*entry)->begin + static_cast<uint64_t>(offset),
                out.data(), out.size());
}

absl::StatusOr<OwnedTensor> SafetensorsFile::Read(absl::string_view name) const {
  const absl::StatusOr<const SafetensorsEntry*> found = Require(name);
  if (!found.ok()) return found.status();
  const SafetensorsEntry* const entry = *found;
  const absl::StatusOr<DType> dtype = EntryDType(*entry);
  if (!dtype.ok()) return WithPath(dtype.status(), path_);
  // A file that became shorter is seen before memory is taken for what is no longer there.
  const absl::StatusOr<uint64_t> file_bytes = RegularFileBytes(fd_, path_);
  if (!file_bytes.ok()) return file_bytes.status();
  if (*file_bytes < header_.data_begin + entry->end) {
    return absl::DataLossError(absl::StrCat(
        Printable(path_), ": tensor \"", Printable(name), "\": file must have at least ",
        header_.data_begin + entry->end, " bytes; was ", *file_bytes));
  }
  OwnedTensor tensor{*dtype, entry->shape, std::vector<uint8_t>(entry->end - entry->begin)};
  if (absl::Status status = ReadAt(fd_, path_, header_.data_begin + entry->begin,
                                   tensor.data.data(), tensor.data.size());
      !status.ok()) {
    return status;
  }
  return tensor;
}

}  // namespace headwise
