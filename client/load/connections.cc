// SPDX-License-Identifier: Apache-2.0
#include "client/load/connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace headwise::client {
namespace {

// "8500" of "127.0.0.1:8500" and "dns:///host:8500"; "/run/h.sock" of "unix:/run/h.sock".
std::string PeerKey(absl::string_view target) {
  if (absl::ConsumePrefix(&target, "unix:")) {
    absl::ConsumePrefix(&target, "//");
    return std::string(target);
  }
  const size_t colon = target.rfind(':');
  return colon == target.npos ? std::string() : std::string(target.substr(colon + 1));
}

bool IsEstablished(int fd) {
  tcp_info info;
  socklen_t size = sizeof(info);
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_state == TCP_ESTABLISHED;
}

// The key of the socket's peer; empty where `fd` is no connected socket.
std::string PeerKeyOf(int fd) {
  sockaddr_storage peer;
  std::memset(&peer, 0, sizeof(peer));
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "";
  if (peer.ss_family == AF_INET && IsEstablished(fd)) {
    return absl::StrCat(ntohs(reinterpret_cast<const sockaddr_in*>(&peer)->sin_port));
  }
  if (peer.ss_family == AF_INET6 && IsEstablished(fd)) {
    return absl::StrCat(ntohs(reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_port));
  }
  if (peer.ss_family == AF_UNIX) return reinterpret_cast<const sockaddr_un*>(&peer)->sun_path;
  return "";
}

}  // namespace

int CountConnections(const std::vector<std::string>& targets) {
  std::set<std::string> wanted;
  for (const std::string& target : targets) wanted.insert(PeerKey(target));
  wanted.erase("");
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    if (wanted.contains(PeerKeyOf(fd))) ++count;
  }
  return count;
}

}  // namespace headwise::client
