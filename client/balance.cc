// SPDX-License-Identifier: Apache-2.0
#include "client/balance.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace headwise::client {
namespace {

// gRPC's own retries keep a copy of the message and give up above a buffer of 256 KiB: ours
// (client/retry.h) are for messages of any size.
constexpr char kServiceConfig[] = R"({"healthCheckConfig":{"serviceName":""}})";

bool IsAddress(int family, absl::string_view text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == text.npos || !absl::SimpleAtoi(text.substr(colon + 1), &port)) return false;
  absl::string_view host = text.substr(0, colon);
  if (family == AF_INET6 &&
      (!absl::ConsumePrefix(&host, "[") || !absl::ConsumeSuffix(&host, "]"))) {
    return false;
  }
  in6_addr address;  // large enough for either
  return inet_pton(family, std::string(host).c_str(), &address) == 1;
}

}  // namespace

absl::StatusOr<std::string> ResolvableTarget(absl::string_view target) {
  if (!absl::StrContains(target, ',') || absl::StartsWith(target, "ipv")) {
    return std::string(target);
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(target, ',');
  for (const auto& [family, scheme] : {std::pair{AF_INET, "ipv4:"}, std::pair{AF_INET6, "ipv6:"}}) {
    if (std::all_of(parts.begin(), parts.end(),
                    [family](absl::string_view part) { return IsAddress(family, part); })) {
      return absl::StrCat(scheme, absl::StrJoin(parts, ","));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "server: must be one HOST:PORT, or a list of addresses like 10.0.0.1:8500,10.0.0.2:8500 (a "
      "name for several is DNS's: dns:///HOST:PORT); was ",
      target));
}

void BalanceCalls(absl::string_view resolvable, grpc::ChannelArguments* arguments) {
  arguments->SetLoadBalancingPolicyName("round_robin");
  if (!absl::StrContains(resolvable, ',') && !absl::StartsWith(resolvable, "dns:")) return;
  arguments->SetServiceConfigJSON(kServiceConfig);
  arguments->SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
}

}  // namespace headwise::client
