// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/format/file.h"
#include "core/format/safetensors.h"

namespace headwise {
namespace {

using NamedTensors = std::vector<std::pair<std::string, TensorView>>;

absl::Status CheckNames(const NamedTensors& tensors) {
  std::set<absl::string_view> names = {"__metadata__"};
  for (const auto& [name, view] : tensors) {
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name: must be given once; was \"", Printable(name), "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const UniqueFd& fd, const std::string& path, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t wrote = ::write(fd.get(), next, bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return FileError(errno, path);
    next += wrote;
    bytes -= static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

absl::Status WriteTensors(const UniqueFd& fd, const std::string& path, const NamedTensors& tensors,
                          const std::map<std::string, std::string>& metadata) {
  const std::string head = EncodeSafetensorsHead(tensors, metadata);
  absl::Status status = WriteAll(fd, path, head.data(), head.size());
  for (const auto& [name, view] : tensors) {
    if (!status.ok()) return status;
    status = WriteAll(fd, path, view.data, view.bytes());
  }
  return status;
}

// Where `path` really leads: a link's target is replaced, never the link.
std::string ResolveLinks(const std::string& path) {
  char* const resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;  // not there yet
  std::string text = resolved;
  std::free(resolved);
  return text;
}

constexpr absl::string_view kTemporaryPrefix = ".headwise-", kTemporarySuffix = ".tmp";

// A name beside `path` that nobody else uses.
std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> next{0};
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  return absl::StrCat(folder, kTemporaryPrefix, ::getpid(), "-", next.fetch_add(1),
                      kTemporarySuffix);
}

absl::Status WriteBesideAndRename(const std::string& path, const NamedTensors& tensors,
                                  const std::map<std::string, std::string>& metadata) {
  const std::string temporary = TemporaryName(path);
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.ok()) return FileError(errno, path);
  absl::Status status = WriteTensors(fd, path, tensors, metadata);
  if (status.ok() && ::fsync(fd.get()) != 0) status = FileError(errno, path);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = FileError(errno, path);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

// The process that made a file of this name; 0: it is none of ours.
pid_t MakerOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kTemporaryPrefix) ||
      !absl::ConsumeSuffix(&name, kTemporarySuffix)) {
    return 0;
  }
  pid_t maker = 0;
  const size_t dash = name.find('-');
  return dash != name.npos && absl::SimpleAtoi(name.substr(0, dash), &maker) ? maker : 0;
}

}  // namespace

void RemoveTemporaries(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const pid_t maker = MakerOf(entry.path().filename().string());
    if (maker <= 0) continue;
    const bool gone = maker == ::getpid() || (::kill(maker, 0) != 0 && errno == ESRCH);
    if (gone) std::filesystem::remove(entry.path(), error);
  }
}

// Text that is no UTF-8 is replaced: JSON can't hold it.
std::string EncodeSafetensorsHead(const NamedTensors& tensors,
                                  const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, view] : tensors) {
    header[name] = {{"dtype", std::string(DTypeName(view.dtype))},
                    {"shape", view.shape},
                    {"data_offsets", {offset, offset + view.bytes()}}};
    offset += view.bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string head;
  for (int i = 0; i < 8; ++i) head.push_back(static_cast<char>(text.size() >> (8 * i)));
  return head + text;
}

absl::Status WriteSafetensors(const std::string& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata) {
  if (absl::Status status = CheckNames(tensors); !status.ok()) return status;
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    if (S_ISDIR(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(Printable(path), ": must not be a folder"));
    }
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.ok()) return FileError(errno, path);
    return WriteTensors(fd, path, tensors, metadata);
  }
  return WriteBesideAndRename(ResolveLinks(path), tensors, metadata);
}

}  // namespace headwise
