// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_ADDRESS_H_
#define HEADWISE_SERVER_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace headwise {

// INVALID_ARGUMENT unless `address` is HOST:PORT (an IPv6 host in brackets).
absl::Status CheckHostPort(absl::string_view field, absl::string_view address);

// `address` with its port replaced.
std::string WithPort(absl::string_view address, int port);

}  // namespace headwise

#endif  // HEADWISE_SERVER_ADDRESS_H_
