// SPDX-License-Identifier: Apache-2.0
#include "server/tokens.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace headwise {
namespace {

absl::Status BadLine(size_t line, absl::string_view rule, absl::string_view was) {
  return absl::InvalidArgumentError(
      absl::StrCat("token-file: line ", line, ": ", rule, "; was ", was));
}

}  // namespace

Tokens::Digest Tokens::DigestOf(absl::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<Tokens> Tokens::Parse(absl::string_view text) {
  Tokens tokens;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() != 2) {
      return BadLine(number, "must be RIGHT TOKEN", absl::StrCat(words.size(), " words"));
    }
    const std::optional<Right> right = ParseRight(words[0]);
    // What stands first may be a token whose right was forgotten.
    if (!right.has_value()) {
      return BadLine(number, "must begin with forward, analyze or admin", "something else");
    }
    const bool printable = std::all_of(words[1].begin(), words[1].end(), absl::ascii_isprint);
    if (!printable || words[1].size() < kLeastBytes || words[1].size() > kMostBytes) {
      return BadLine(number,
                     absl::StrCat("a token must have ", kLeastBytes, " to ", kMostBytes,
                                  " printable characters"),
                     absl::StrCat(words[1].size(), printable ? "" : " bytes, not all printable"));
    }
    const Digest digest = DigestOf(words[1]);
    for (const auto& [known, known_right] : tokens.tokens_) {
      if (known == digest) return BadLine(number, "a token must stand there once", "there twice");
    }
    tokens.tokens_.emplace_back(digest, *right);
  }
  if (tokens.tokens_.empty()) {
    return absl::InvalidArgumentError("token-file: must hold a token; was without one");
  }
  return tokens;
}

Right Tokens::Find(absl::string_view token) const {
  const Digest digest = DigestOf(token);
  Right found = Right::kNone;
  for (const auto& [known, right] : tokens_) {
    if (CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0) found = right;
  }
  return found;
}

absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace headwise
