// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_TOKENS_H_
#define HEADWISE_SERVER_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/rights.h"

namespace headwise {

// The bearer tokens that are let in. Only their SHA-256 is kept. Immutable.
class Tokens {
 public:
  static constexpr size_t kLeastBytes = 16, kMostBytes = 4096;

  // Lines "RIGHT TOKEN" (forward, analyze or admin; 16 to 4096 printable characters without
  // spaces); empty ones and those that begin with # are skipped. INVALID_ARGUMENT with the line's
  // number, never with what stands there.
  static absl::StatusOr<Tokens> Parse(absl::string_view text);

  // The token's right, kNone if it isn't let in. Takes as long whichever of them it resembles.
  Right Find(absl::string_view token) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest DigestOf(absl::string_view token);

  std::vector<std::pair<Digest, Right>> tokens_;
};

// The token of "Bearer TOKEN"; "" for anything else.
absl::string_view BearerToken(absl::string_view authorization);

}  // namespace headwise

#endif  // HEADWISE_SERVER_TOKENS_H_
