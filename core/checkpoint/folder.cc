// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/mutex.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/root_folder.h"
#include "core/format/file.h"
#include "core/format/safetensors.h"
#include "core/format/strict_json.h"

namespace headwise {
namespace {

constexpr absl::string_view kConfigFile = "config.json";
constexpr absl::string_view kIndexFile = "model.safetensors.index.json";
constexpr absl::string_view kSingleFile = "model.safetensors";
constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr uint64_t kMaxIndexBytes = 32 << 20;
constexpr size_t kMaxDirBytes = 4096;

// Which file it was, to notice that another one has taken its name.
using FileIdentity = std::tuple<dev_t, ino_t, off_t, time_t, long>;  // …, size, mtime in s and ns

absl::StatusOr<FileIdentity> Identify(const UniqueFd& fd, absl::string_view path) {
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return FileError(errno, path);
  return FileIdentity{info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                      info.st_mtim.tv_nsec};
}

absl::Status CheckDir(absl::string_view dir) {
  bool sound =
      !dir.empty() && dir.size() <= kMaxDirBytes && dir.find('\0') == absl::string_view::npos;
  if (dir != ".") {
    for (const absl::string_view part : absl::StrSplit(dir, '/')) {
      sound = sound && !part.empty() && part != "." && part != "..";
    }
  }
  if (sound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint: must be a folder inside the repository, relative, without empty parts, \".\" "
      "and \"..\"; was \"",
      Printable(dir), "\""));
}

absl::Status CheckShardName(absl::string_view tensor, const nlohmann::json& value) {
  if (value.is_string()) {
    const std::string& name = value.get_ref<const std::string&>();
    if (!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
        name.find('\0') == std::string::npos && name.size() <= 255) {
      return absl::OkStatus();
    }
  }
  return absl::DataLossError(absl::StrCat(
      kIndexFile, ": tensor \"", Printable(tensor), "\": must name a file of the folder; was ",
      Printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))));
}

// Which shard holds each tensor.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ParseIndex(absl::string_view text) {
  const absl::StatusOr<nlohmann::json> index = ParseStrictJson(text, kIndexFile);
  if (!index.ok()) return index.status();
  const auto found = index->is_object() ? index->find("weight_map") : index->end();
  if (found == index->end() || !found->is_object()) {
    return absl::DataLossError(absl::StrCat(kIndexFile, ": must hold an object weight_map"));
  }
  WeightMap map;
  for (const auto& [tensor, file] : found->items()) {
    if (absl::Status status = CheckShardName(tensor, file); !status.ok()) return status;
    map[tensor] = file.get<std::string>();
  }
  return map;
}

class FolderCheckpoint : public Checkpoint {
 public:
  FolderCheckpoint(std::unique_ptr<RootFolder> root, std::string dir)
      : root_(std::move(root)), dir_(std::move(dir)) {}

  // Reads config.json, the index and the shards' headers.
  absl::Status Init() {
    absl::StatusOr<std::string> config = ReadText(kConfigFile, kMaxConfigBytes);
    if (!config.ok()) return config.status();
    config_json_ = *std::move(config);
    const absl::StatusOr<std::string> index = ReadText(kIndexFile, kMaxIndexBytes);
    if (absl::IsNotFound(index.status())) return InitSingle();
    if (!index.ok()) return index.status();
    absl::StatusOr<WeightMap> map = ParseIndex(*index);
    if (!map.ok()) return map.status();
    files_ = *std::move(map);
    return InitShards();
  }

  const std::string& config_json() const override { return config_json_; }
  const std::vector<StoredTensorInfo>& tensors() const override { return tensors_; }

  absl::StatusOr<OwnedTensor> Read(absl::string_view name) const override {
    const absl::StatusOr<const SafetensorsFile*> file = FileOf(name);
    if (!file.ok()) return file.status();
    absl::StatusOr<OwnedTensor> tensor = (*file)->Read(name);
    // The index names a tensor that its shard doesn't hold.
    if (absl::IsNotFound(tensor.status())) return absl::DataLossError(tensor.status().message());
    return tensor;
  }

  absl::Status ReadPart(absl::string_view name, int64_t offset,
                        absl::Span<char> out) const override {
    const absl::StatusOr<const SafetensorsFile*> file = FileOf(name);
    if (!file.ok()) return file.status();
    absl::Status read = (*file)->ReadPart(name, offset, out);
    if (absl::IsNotFound(read)) return absl::DataLossError(read.message());
    return read;
  }

 private:
  std::string PathOf(absl::string_view file) const { return absl::StrCat(dir_, "/", file); }

  // Anything wrong with a file that isn't simply absent is a fault of what is stored.
  absl::StatusOr<UniqueFd> OpenFile(absl::string_view file) const {
    absl::StatusOr<UniqueFd> fd = root_->OpenFile(PathOf(file));
    if (absl::IsOutOfRange(fd.status())) return absl::DataLossError(fd.status().message());
    return fd;
  }

  absl::StatusOr<std::string> ReadText(absl::string_view file, uint64_t max_bytes) const {
    const absl::StatusOr<UniqueFd> fd = OpenFile(file);
    if (!fd.ok()) return fd.status();
    return ReadAll(*fd, PathOf(file), max_bytes);
  }

  // Reads a shard's header and remembers which file it was.
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> ReadHeader(const std::string& file,
                                                              absl::StatusOr<UniqueFd> fd) {
    if (!fd.ok()) return fd.status();
    const absl::StatusOr<FileIdentity> identity = Identify(*fd, PathOf(file));
    if (!identity.ok()) return identity.status();
    identities_.insert_or_assign(file, *identity);
    return SafetensorsFile::FromFd(*std::move(fd), PathOf(file));
  }

  absl::Status InitSingle() {
    const std::string file(kSingleFile);
    const absl::StatusOr<std::unique_ptr<SafetensorsFile>> opened =
        ReadHeader(file, OpenFile(file));
    if (absl::IsNotFound(opened.status())) {
      return absl::NotFoundError(absl::StrCat(Printable(dir_), ": must hold ", kIndexFile, " or ",
                                              kSingleFile, "; was without"));
    }
    if (!opened.ok()) return opened.status();
    for (const SafetensorsEntry& entry : (*opened)->header().entries) {
      files_[entry.name] = file;
      tensors_.push_back({entry.name, entry.dtype, entry.shape});
    }
    return absl::OkStatus();
  }

  absl::Status InitShards() {
    std::map<std::string, std::vector<std::string>> shards;  // file -> tensors by the index
    for (const auto& [tensor, file] : files_) shards[file].push_back(tensor);
    for (const auto& [file, tensors] : shards) {
      if (absl::Status status = InitShard(file, tensors); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // A shard that can't be read fails the layers that need it and no other; only a way out of the
  // repository, or the system's own limits, fail the folder.
  absl::Status InitShard(const std::string& file, const std::vector<std::string>& expected) {
    absl::StatusOr<UniqueFd> fd = root_->OpenFile(PathOf(file));
    if (absl::IsOutOfRange(fd.status())) return absl::DataLossError(fd.status().message());
    const absl::StatusOr<std::unique_ptr<SafetensorsFile>> opened = ReadHeader(file, std::move(fd));
    if (absl::IsResourceExhausted(opened.status())) return opened.status();
    for (const std::string& name : expected) AddExpected(name, file, opened);
    if (opened.ok()) AddUnlisted(file, **opened);
    return absl::OkStatus();
  }

  void AddExpected(const std::string& name, const std::string& file,
                   const absl::StatusOr<std::unique_ptr<SafetensorsFile>>& opened) {
    const std::string start = absl::StrCat("tensor \"", Printable(name), "\": ");
    StoredTensorInfo& info = tensors_.emplace_back();
    info.name = name;
    if (!opened.ok()) {
      info.problem = absl::StrCat(start, opened.status().message());
      return;
    }
    const SafetensorsEntry* const entry = (*opened)->Find(name);
    if (entry == nullptr) {
      info.problem = absl::StrCat(start, "must be in ", Printable(PathOf(file)),
                                  " as the index says; was missing");
      return;
    }
    info.dtype = entry->dtype;
    info.shape = entry->shape;
  }

  // What a shard holds beside the index is no part of the checkpoint, and a layer that would need
  // it says so.
  void AddUnlisted(const std::string& file, const SafetensorsFile& opened) {
    for (const SafetensorsEntry& entry : opened.header().entries) {
      if (files_.count(entry.name) != 0) continue;
      StoredTensorInfo& info = tensors_.emplace_back();
      info.name = entry.name;
      info.problem = absl::StrCat("tensor \"", Printable(entry.name), "\": must be in ", kIndexFile,
                                  "; was only in ", Printable(PathOf(file)));
    }
  }

  static absl::Status InTensor(absl::string_view name, const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("tensor \"", Printable(name), "\": ", status.message()));
  }

  absl::StatusOr<const SafetensorsFile*> FileOf(absl::string_view name) const {
    const auto found = files_.find(std::string(name));
    if (found == files_.end()) {
      return absl::NotFoundError(
          absl::StrCat("tensor: must be in the checkpoint; was missing: ", Printable(name)));
    }
    absl::StatusOr<const SafetensorsFile*> file = OpenAgain(found->second);
    if (!file.ok()) return InTensor(name, file.status());
    return file;
  }

  // Opens a shard on first use and keeps it. DATA_LOSS if it isn't the file whose header was read.
  absl::StatusOr<const SafetensorsFile*> OpenAgain(const std::string& file) const {
    MutexLock lock(&mu_);
    std::unique_ptr<SafetensorsFile>& slot = open_[file];
    if (slot != nullptr) return slot.get();
    absl::StatusOr<UniqueFd> fd = OpenFile(file);
    if (absl::IsNotFound(fd.status())) return absl::DataLossError(fd.status().message());
    if (!fd.ok()) return fd.status();
    const absl::StatusOr<FileIdentity> identity = Identify(*fd, PathOf(file));
    if (!identity.ok()) return identity.status();
    const auto known = identities_.find(file);
    if (known == identities_.end() || known->second != *identity) {
      return absl::DataLossError(
          absl::StrCat(Printable(PathOf(file)), ": must not change while it is loaded"));
    }
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> opened =
        SafetensorsFile::FromFd(*std::move(fd), PathOf(file));
    if (!opened.ok()) return opened.status();
    slot = *std::move(opened);
    return slot.get();
  }

  const std::unique_ptr<RootFolder> root_;
  const std::string dir_;

  // Constant after Init.
  std::string config_json_;
  std::vector<StoredTensorInfo> tensors_;
  WeightMap files_;
  std::map<std::string, FileIdentity> identities_;

  mutable Mutex mu_;
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> open_ ABSL_GUARDED_BY(mu_);
};

// A folder's own name is the caller's: what is wrong with it is no fault of a stored file.
absl::Status FolderError(const absl::Status& status) {
  if (!absl::IsOutOfRange(status) && !absl::IsDataLoss(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat("checkpoint: ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(absl::string_view root,
                                                             absl::string_view dir) {
  absl::ConsumeSuffix(&dir, "/");
  if (absl::Status status = CheckDir(dir); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<RootFolder>> folder = RootFolder::Open(root);
  if (!folder.ok()) return folder.status();
  if (absl::Status status = (*folder)->OpenFolder(dir).status(); !status.ok()) {
    return FolderError(status);
  }
  auto checkpoint = std::make_unique<FolderCheckpoint>(*std::move(folder), std::string(dir));
  if (absl::Status status = checkpoint->Init(); !status.ok()) return status;
  return checkpoint;
}

}  // namespace headwise
