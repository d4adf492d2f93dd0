// SPDX-License-Identifier: Apache-2.0
#include "client/channel_security.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "core/format/file.h"

namespace headwise::client {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;

absl::StatusOr<std::string> ReadText(const Args& args, absl::string_view flag) {
  if (!args.Has(flag)) return std::string();
  const std::string path = args.Text(flag);
  CLIENT_ASSIGN_OR_RETURN(const UniqueFd file, OpenForRead(path));
  CLIENT_ASSIGN_OR_RETURN(std::string text, ReadAll(file, path, kMaxFileBytes));
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": must hold something; was ", path));
  }
  return text;
}

}  // namespace

const std::vector<Flag>& SecurityFlags() {
  static const auto* flags = new std::vector<Flag>{
      {"tls", "", "over TLS; so do the other flags of TLS"},
      {"tls-ca", "FILE", "who signs the server's certificate; whom the system trusts by default"},
      {"tls-cert", "FILE", "this caller's certificate, with --tls-key"},
      {"tls-key", "FILE", "its private key"},
      {"tls-name", "NAME", "the name in the server's certificate, if it isn't the address"},
      {"token-file", "FILE", "file with the bearer token"},
  };
  return *flags;
}

absl::StatusOr<ChannelSecurity> ReadSecurity(const Args& args) {
  ChannelSecurity security;
  if (args.Has("tls-cert") != args.Has("tls-key")) {
    return UsageError("--tls-cert, --tls-key: must be given together; was one of them");
  }
  for (const absl::string_view flag : {"tls", "tls-ca", "tls-cert", "tls-name"}) {
    security.tls = security.tls || args.Has(flag);
  }
  CLIENT_ASSIGN_OR_RETURN(security.ca, ReadText(args, "tls-ca"));
  CLIENT_ASSIGN_OR_RETURN(security.certificate, ReadText(args, "tls-cert"));
  CLIENT_ASSIGN_OR_RETURN(security.key, ReadText(args, "tls-key"));
  security.server_name = args.Text("tls-name");
  CLIENT_ASSIGN_OR_RETURN(const std::string token, ReadText(args, "token-file"));
  security.token = std::string(absl::StripAsciiWhitespace(token));
  for (const char c : security.token) {
    if (absl::ascii_isgraph(static_cast<unsigned char>(c))) continue;
    return absl::InvalidArgumentError(
        "token-file: must hold one token of printable characters; was something else");
  }
  return security;
}

absl::Status CheckSecurity(const std::string& target, const ChannelSecurity& security) {
  if (security.token.empty() || security.tls || absl::StartsWith(target, "unix:")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("token-file: must come with TLS (--tls, --tls-ca), or the token would cross the "
                   "network in the open; was without, to ",
                   target));
}

}  // namespace headwise::client
