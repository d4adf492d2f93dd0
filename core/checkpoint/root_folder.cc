// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/root_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace headwise {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel's own

absl::Status Leaves(absl::string_view path) {
  return absl::OutOfRangeError(
      absl::StrCat(Printable(path), ": must stay inside the repository; was a way out of it"));
}

absl::Status NotRegular(absl::string_view path) {
  return absl::DataLossError(absl::StrCat(Printable(path), ": must be a regular file"));
}

std::vector<std::string> SplitPath(absl::string_view path) {
  return absl::StrSplit(path, '/', absl::SkipEmpty());
}

// One walk from the root down a path.
class Walk {
 public:
  Walk(int root_fd, absl::string_view root_path, absl::string_view path, int flags)
      : root_fd_(root_fd), root_path_(root_path), path_(path), flags_(flags) {
    Prepend(path);
  }

  absl::StatusOr<UniqueFd> Run() {
    UniqueFd last;
    while (!pending_.empty()) {
      const std::string name = std::move(pending_.front());
      pending_.pop_front();
      if (absl::Status status = Step(name, &last); !status.ok()) return status;
    }
    if (last.ok()) return last;
    return Reopen(top(), ".");  // the walk ended at a folder
  }

 private:
  int top() const { return folders_.empty() ? root_fd_ : folders_.back().get(); }

  void Prepend(absl::string_view path) {
    const std::vector<std::string> names = SplitPath(path);
    pending_.insert(pending_.begin(), names.begin(), names.end());
  }

  absl::Status Step(const std::string& name, UniqueFd* last) {
    if (name == ".") return absl::OkStatus();
    if (name == "..") {
      if (folders_.empty()) return Leaves(path_);
      folders_.pop_back();
      return absl::OkStatus();
    }
    UniqueFd entry(::openat(top(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info;
    if (!entry.ok() || ::fstat(entry.get(), &info) != 0) return FileError(errno, path_);
    if (S_ISLNK(info.st_mode)) return FollowLink(entry);
    if (S_ISDIR(info.st_mode)) {
      folders_.push_back(std::move(entry));
      return absl::OkStatus();
    }
    if (!pending_.empty()) return FileError(ENOTDIR, path_);
    if (!S_ISREG(info.st_mode)) return NotRegular(path_);  // opening a device may have effects
    absl::StatusOr<UniqueFd> file = Reopen(top(), name);
    if (file.ok()) *last = *std::move(file);
    return file.status();
  }

  absl::Status FollowLink(const UniqueFd& link) {
    if (++links_ > kMaxLinks) return FileError(ELOOP, path_);
    std::string target(PATH_MAX, '\0');
    const ssize_t length = ::readlinkat(link.get(), "", target.data(), target.size());
    if (length < 0) return FileError(errno, path_);
    target.resize(static_cast<size_t>(length));
    absl::string_view rest = target;
    if (absl::StartsWith(rest, "/")) {
      // A whole path may still mean a place below the root.
      if (!absl::ConsumePrefix(&rest, root_path_) || !(rest.empty() || rest[0] == '/')) {
        return Leaves(path_);
      }
      folders_.clear();
    }
    Prepend(rest);
    return absl::OkStatus();
  }

  absl::StatusOr<UniqueFd> Reopen(int folder, const std::string& name) const {
    UniqueFd fd(::openat(folder, name.c_str(), flags_ | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.ok()) return FileError(errno, path_);
    return fd;
  }

  const int root_fd_;
  const absl::string_view root_path_;
  const absl::string_view path_;
  const int flags_;
  std::deque<std::string> pending_;
  std::vector<UniqueFd> folders_;  // from the root down to where the walk is
  int links_ = 0;
};

}  // namespace

RootFolder::RootFolder(UniqueFd fd, std::string real_path)
    : fd_(std::move(fd)), real_path_(std::move(real_path)) {}

absl::StatusOr<std::unique_ptr<RootFolder>> RootFolder::Open(absl::string_view path) {
  const std::string name(path);
  if (name.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("repository: must not hold a NUL; was ", Printable(path)));
  }
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(name.c_str(), nullptr),
                                                         &std::free);
  if (real == nullptr) return FileError(errno, path);
  UniqueFd fd(::open(real.get(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok()) return FileError(errno, path);
  std::string real_path = real.get();
  if (real_path == "/") real_path.clear();  // every whole path lies below
  return std::unique_ptr<RootFolder>(new RootFolder(std::move(fd), std::move(real_path)));
}

absl::StatusOr<UniqueFd> RootFolder::OpenBelow(absl::string_view path, int flags) const {
  return Walk(fd_.get(), real_path_, path, flags).Run();
}

absl::StatusOr<UniqueFd> RootFolder::OpenFile(absl::string_view path) const {
  absl::StatusOr<UniqueFd> fd = OpenBelow(path, O_RDONLY);
  if (!fd.ok()) return fd.status();
  struct stat info;
  if (::fstat(fd->get(), &info) != 0) return FileError(errno, path);
  if (!S_ISREG(info.st_mode)) return NotRegular(path);
  return fd;
}

absl::StatusOr<UniqueFd> RootFolder::OpenFolder(absl::string_view path) const {
  return OpenBelow(path, O_RDONLY | O_DIRECTORY);
}

absl::StatusOr<std::vector<std::string>> RootFolder::ListFolders(absl::string_view path) const {
  absl::StatusOr<UniqueFd> fd = OpenFolder(path);
  if (!fd.ok()) return fd.status();
  // fdopendir takes the descriptor over.
  const int owned = ::fcntl(fd->get(), F_DUPFD_CLOEXEC, 0);
  DIR* const opened = owned < 0 ? nullptr : ::fdopendir(owned);
  if (opened == nullptr) {
    const int error = errno;
    if (owned >= 0) ::close(owned);
    return FileError(error, path);
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opened, &::closedir);
  std::vector<std::string> names;
  while (const dirent* const entry = ::readdir(folder.get())) {
    struct stat info;
    if (entry->d_name[0] != '.' &&
        ::fstatat(fd->get(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(info.st_mode)) {
      names.emplace_back(entry->d_name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace headwise
