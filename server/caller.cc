// SPDX-License-Identifier: Apache-2.0
#include "server/caller.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace headwise {
namespace {

constexpr size_t kMaxClientBytes = 128;

absl::string_view Metadata(const grpc::ServerContextBase& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(key);
  if (found == metadata.end()) return "";
  return {found->second.data(), found->second.size()};
}

bool IsTraceParent(absl::string_view text) {
  constexpr absl::string_view kForm = "00-00000000000000000000000000000000-0000000000000000-00";
  if (text.size() != kForm.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool dash = kForm[i] == '-';
    if (dash ? text[i] != '-' : !absl::ascii_isxdigit(static_cast<unsigned char>(text[i]))) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string HostOfPeer(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix")) return "unix";
  const size_t colon = peer.find(':');
  if (colon == absl::string_view::npos || peer == "inproc:") return "in-process";
  const absl::string_view address = peer.substr(colon + 1);
  const std::string host(address.substr(0, address.rfind(':')));
  return absl::StrReplaceAll(host, {{"%5B", "["}, {"%5D", "]"}});
}

std::string ClientOf(const grpc::ServerContextBase& context) {
  // gRPC has refused what isn't printable ASCII.
  const absl::string_view client = Metadata(context, "headwise-client");
  return client.empty() ? HostOfPeer(context.peer())
                        : std::string(client.substr(0, kMaxClientBytes));
}

std::string TraceParentOf(const grpc::ServerContextBase& context) {
  const absl::string_view text = Metadata(context, "traceparent");
  return IsTraceParent(text) ? std::string(text) : "";
}

}  // namespace headwise
