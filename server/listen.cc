// SPDX-License-Identifier: Apache-2.0
#include "server/listen.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/address.h"

namespace headwise {
namespace {

constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// Whether somebody accepts connections at `path`.
bool SomebodyAnswers(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;  // can't tell: leave the file alone
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const bool refused = !connected && errno == ECONNREFUSED;  // EAGAIN: a server with a full backlog
  close(fd);
  return !refused;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseListen(absl::string_view flag,
                                                     absl::string_view text) {
  std::vector<std::string> addresses = absl::StrSplit(text, ',', absl::SkipEmpty());
  if (addresses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": must be HOST:PORT or unix:PATH; was empty"));
  }
  for (const std::string& address : addresses) {
    const bool is_unix = absl::StartsWith(address, "unix:");
    const std::string path = UnixPath(address);
    if (is_unix && (path.empty() || path.size() > kMaxPathBytes)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": a unix: path must have 1 to ",
                                                     kMaxPathBytes, " bytes; was ", address));
    }
    if (is_unix) continue;
    if (absl::Status status = CheckHostPort(flag, address); !status.ok()) return status;
  }
  return addresses;
}

std::string UnixPath(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "unix:")) return "";
  return std::string(address);
}

absl::Status ClearUnixSocket(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::UnavailableError(
        absl::StrCat("listen: a unix: path must be free or a socket; was ", path));
  }
  if (SomebodyAnswers(path)) {
    return absl::UnavailableError(
        absl::StrCat("listen: a unix: path must be one where nobody answers; was ", path));
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace headwise
