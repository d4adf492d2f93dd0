// SPDX-License-Identifier: Apache-2.0
#include "server/address.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace headwise {

absl::Status CheckHostPort(absl::string_view field, absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  const bool valid = colon != absl::string_view::npos && colon > 0 &&
                     absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
                     port <= 65535;
  const absl::string_view host = valid ? address.substr(0, colon) : "";
  const bool bare_ipv6 = host.find(':') != absl::string_view::npos && host[0] != '[';
  if (valid && !bare_ipv6) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": must be HOST:PORT; was ", address));
}

std::string WithPort(absl::string_view address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

}  // namespace headwise
